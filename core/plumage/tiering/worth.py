"""Stops promotion while it does not pay: while requests use too few of the promoted blocks before their eviction.

HotPrefix promotes whenever decodes leave the link idle, and does not measure harm. On some loads the hot prefixes
change faster than they are promoted, or promoted blocks evict each other. Then each promotion costs a copy and a
resident, and gains nothing. Promotion then pauses and tries again later, each time after a longer pause.
"""

from __future__ import annotations

from plumage.errors import ConfigurationError

__all__ = ["PromotionWorth"]

_LONGEST = 64
"""The longest pause, in multiples of the first one."""


class PromotionWorth:
    """least: share of the promoted blocks that must be used. window: number of blocks with a known result for each
    decision. rest: turns without promotion after the first negative decision; each further one in a row doubles it."""

    def __init__(self, *, least: float = 0.2, window: int = 256, rest: int = 64) -> None:
        if not 0 <= least <= 1 or window < 1 or rest < 1:
            raise ConfigurationError("promotion: least must be within 0 and 1, window and rest at least 1")
        self._least = least
        self._window = window
        self._first_rest = rest
        self._next_rest = rest
        self._resting = 0
        self._used = 0
        self._wasted = 0
        self.rests = 0

    @property
    def resting(self) -> bool:
        """Whether promotion is paused."""
        return self._resting > 0

    def turn(self) -> bool:
        """Called when it is time to promote. True if promotion should run. A turn without promotion counts towards the
        pause."""
        if self._resting:
            self._resting -= 1
            return False
        return True

    def count_outcomes(self, *, used: int = 0, wasted: int = 0) -> None:
        """Counts promoted blocks. used: a request found them. wasted: they were evicted before that."""
        self._used += used
        self._wasted += wasted
        if self._used + self._wasted >= self._window:
            self._judge()

    def _judge(self) -> None:
        if self._used >= self._least * (self._used + self._wasted):
            self._next_rest = self._first_rest
        else:
            self.rests += 1
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST * self._first_rest)
        self._used = self._wasted = 0
