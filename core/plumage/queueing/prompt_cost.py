"""What a waiting request would cost on the replicas with room, not counting what they have in their caches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nlargest
from typing import Final

__all__ = ["Match", "PromptCost"]

Match = Callable[[Sequence[int]], Mapping[int, tuple[int, int]]]
"""Slot → (chunks, tokens) that its replica holds of a chain."""
_KEPT: Final = 0.1  # seconds that a match is used again: caches change more slowly, and a choice compares many requests
_MOST: Final = 64  # replicas of a match that are kept, those that hold most: thousands of requests may wait


class PromptCost:
    """Of one request. tokens: the cost without a cache. prompt_tokens: those of them that a cache can save. chunks: the
    prompt's chain."""

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
