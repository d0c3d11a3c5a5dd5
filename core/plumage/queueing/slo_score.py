"""A request's place by three things: what its prefix saves, the time that it has left, and what it costs to compute.

The article's queue ("Cache-aware scheduling", section 2.5) scores requests by these three and prints no formula. This
one is ours: the tokens to compute, times the share of the waiting time that is left. So requests whose prefix is cached
go first and cheap ones before costly ones. Each request comes to the front while a fifth of its time is still left.
Otherwise it would miss its turn at a few choices a second. `PromptCost` has the cost, `slo_score` the place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nlargest
from typing import Final, Literal

__all__ = ["CANDIDATES", "Match", "PromptCost", "QueueOrder", "slo_score"]

QueueOrder = Literal["Deadline", "SloScore"]

CANDIDATES: Final = 16
"""Requests of a tenant that are scored at each choice: so many with the earliest deadlines, and so many that cost least
when they came. A choice costs the same in any queue."""
_RESERVE: Final = 0.2  # share of its time that a request leaves for the requests that are due before it
Match = Callable[[Sequence[int]], Mapping[int, tuple[int, int]]]
"""Slot → (chunks, tokens) that its replica holds of a chain."""
_KEPT: Final = 0.1  # seconds that a match is used again: caches change more slowly, and a choice compares many requests
_MOST: Final = 64  # replicas of a match that are kept, those that hold most: thousands of requests may wait


def slo_score(compute: float, since: float, deadline: float, now: float) -> float:
    """The least score goes first. compute: tokens that are not cached. since, deadline, now: seconds, when the wait
    began and must end."""
    time = max(deadline - since, 1e-9)
    return compute * max(0.0, (deadline - now) / time - _RESERVE)


class PromptCost:
    """What one waiting request would cost on the replicas with room, not counting what they have in their caches.

    tokens: the cost without a cache. prompt_tokens: those of them that a cache can save. chunks: the prompt's chain."""

    __slots__ = ("_cached", "_chunks", "_prompt_tokens", "_tokens", "_until")

    def __init__(self, tokens: float, prompt_tokens: float, chunks: Sequence[int]) -> None:
        self._tokens, self._prompt_tokens, self._chunks = tokens, prompt_tokens, chunks
        self._cached: Sequence[tuple[int, int]] = ()  # tokens and slot, the most tokens first
        self._until = float("-inf")

    def on(self, slots: Collection[int], match: Match, now: float) -> float:
        """On that of the replicas that holds most of the prompt. now: seconds on the caller's clock."""
        if now >= self._until:
            self._cached = nlargest(_MOST, ((tokens, slot) for slot, (_, tokens) in match(self._chunks).items()))
            self._until = now + _KEPT
        cached = next((tokens for tokens, slot in self._cached if slot in slots), 0)
        return self._tokens - min(self._prompt_tokens, cached)
