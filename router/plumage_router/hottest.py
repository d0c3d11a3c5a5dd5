"""The prefixes this router matches most, with counts, in bounded memory.

Lossy counting: when the table is full every count is halved and what falls to nothing is dropped, so a hot prefix stays
and old heat fades.
"""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["Hottest"]


class Hottest:
    """Counts by the deepest chunk a request matched. `count` is on the hot path."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._counts: dict[int, int] = {}
        self._tokens: dict[int, int] = {}

    def count(self, chunk: int, tokens: float) -> None:
        counts = self._counts
        counts[chunk] = counts.get(chunk, 0) + 1
        self._tokens[chunk] = int(tokens)
        if len(counts) > self._capacity:
            self._fade()

    def top(self, number: int) -> list[dict[str, Any]]:
        best = heapq.nlargest(number, self._counts.items(), key=lambda item: item[1])
        return [{"chunk": f"{chunk:016x}", "tokens": self._tokens[chunk], "count": count} for chunk, count in best]

    def _fade(self) -> None:
        """Halves until a quarter of the table is free, or only large counts are left."""
        while len(self._counts) > self._capacity * 3 // 4:
            self._counts = {chunk: count // 2 for chunk, count in self._counts.items() if count > 1}
        self._tokens = {chunk: self._tokens[chunk] for chunk in self._counts}
