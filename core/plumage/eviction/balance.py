"""How much frequency should weigh against recency, learned from what came back.

A slightly different weight would change the fate of those runs only whose score lies near that of the last victims. So
these vote: each time one of them is used again, found in the cache or just evicted, it says "more weight" when its
worth is above that of the victims, "less" when below. In balance, no change of the weight would keep more of what is
used again. First votes move the weight far, later ones little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plumage.errors import ConfigurationError

__all__ = ["Balance", "BalanceSettings"]

_WHOLE_VOTE = 5  # blocks; a shorter run's vote counts in proportion
_QUICK = 8.0  # the victims' score is followed faster than their worth


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """weight: at the start. rate, first_rate: how far a vote moves the weight's logarithm, in the long run and at
    first; settle: votes after which the first rate has halved. band: how far from the victims' score a run still
    votes, in cache sizes. lowest, highest: bounds of the weight."""

    weight: float = 0.5
    rate: float = 0.05
    first_rate: float = 0.8
    settle: int = 50
    band: float = 0.25
    lowest: float = 0.005
    highest: float = 1.3

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.weight <= self.highest < math.inf:
            raise ConfigurationError("hotness needs 0 < lowest <= weight <= highest")
        if not (0 <= self.rate <= 1 and 0 <= self.first_rate <= 1 and self.settle >= 1 and self.band > 0):
            raise ConfigurationError("hotness needs rates from 0 to 1, settle of at least 1, band above 0")


class Balance:
    """`weight`, as learned by now; both rates at 0 fix it. capacity: blocks of the cache."""

    def __init__(self, capacity: int, settings: BalanceSettings) -> None:
        self.weight = settings.weight
        self._settings = settings
        self._capacity = capacity
        self._votes = 0
        self._victims_score: float | None = None
        self._victims_worth = 0.0

    def evicted(self, score: float, worth: float, blocks: int) -> None:
        """A victim with this score and worth lost `blocks` blocks."""
        share = min(1.0, blocks / self._capacity)
        self._victims_worth += (worth - self._victims_worth) * share
        if self._victims_score is None:
            self._victims_score = score
        self._victims_score += (score - self._victims_score) * min(1.0, _QUICK * share)

    def vote(self, score: float, worth: float, blocks: int) -> None:
        """A run of `blocks` blocks that had this score and worth is used again."""
        settings = self._settings
        if self._victims_score is None or abs(score - self._victims_score) > settings.band * self._capacity:
            return
        self._votes += 1
        rate = settings.rate + settings.first_rate / (1 + self._votes / settings.settle)
        side = max(-1.0, min(1.0, worth - self._victims_worth)) * min(1.0, blocks / _WHOLE_VOTE)
        self.weight = min(max(self.weight * math.exp(rate * side), settings.lowest), settings.highest)

    def reset(self) -> None:
        """The cache was emptied: what is learned stays, the victims are forgotten."""
        self._victims_score = None
