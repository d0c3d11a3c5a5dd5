"""Counts the prefixes that this router matches most often, in bounded memory.

Recent counts are in one dict, so a count is one look-up. `take` moves them to the table and returns them to be shared
with the pool. When the table is full, every count is halved and prefixes without a count are dropped. So a hot prefix
stays, and old counts fade.
"""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["HotPrefixes"]


class HotPrefixes:
    """Counts by the deepest chunk that a request matched.

    capacity: entries of the table.
    max_recent: chunks between two calls of `take`; beyond it the recent counts move to the table without being shared.
    """

    def __init__(self, capacity: int = 1024, max_recent: int = 4096) -> None:
        self._capacity = capacity
        self._max_recent = max_recent
        self._recent: dict[int, list[int]] = {}  # chunk → [uses, tokens]
        self._table: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._table) + len(self._recent)

    def count(self, chunk: int, tokens: float) -> None:
        """Counts a request that matched up to `chunk`. tokens: in the chosen replica's cache."""
        known = self._recent.get(chunk)
        if known is None:
            self._recent[chunk] = [1, int(tokens)]
            if len(self._recent) > self._max_recent:
                self.take()
        else:
            known[0] += 1
            if tokens > known[1]:
                known[1] = int(tokens)

    def take(self) -> dict[int, tuple[int, int]]:
        """Returns chunk → (uses, tokens) since the last call."""
        recent, self._recent = self._recent, {}
        for chunk, (uses, tokens) in recent.items():
            known = self._table.setdefault(chunk, [0, 0])
            known[0] += uses
            known[1] = max(known[1], tokens)
        while len(self._table) > self._capacity:
            self._fade()
        return {chunk: (uses, tokens) for chunk, (uses, tokens) in recent.items()}

    def top(self, number: int) -> list[dict[str, Any]]:
        best = heapq.nlargest(min(number, self._capacity), self._counts().items(), key=lambda item: item[1][0])
        return [{"chunk": f"{chunk:016x}", "tokens": tokens, "count": uses} for chunk, (uses, tokens) in best]

    def _counts(self) -> dict[int, tuple[int, int]]:
        both = {chunk: (uses, tokens) for chunk, (uses, tokens) in self._table.items()}
        for chunk, (uses, tokens) in self._recent.items():
            known = both.get(chunk, (0, 0))
            both[chunk] = (known[0] + uses, max(known[1], tokens))
        return both

    def _fade(self) -> None:
        """Halves the counts until a quarter of the table is free."""
        while len(self._table) > self._capacity * 3 // 4:
            self._table = {chunk: [uses // 2, tokens] for chunk, (uses, tokens) in self._table.items() if uses > 1}
