"""The prefixes this router matches most, with counts, in bounded memory.

Two stages, so that counting stays one look-up: the news of the last second or so, which `take` hands over to be shared
with the pool, and the table behind it. Lossy counting: when the table is full every count is halved and what falls to
nothing is dropped, so a hot prefix stays and old heat fades.
"""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["Hottest"]


class Hottest:
    """Counts by the deepest chunk a request matched. `count` is on the hot path. `capacity`: of the table; `news`:
    chunks counted between two calls of `take`; beyond it they are counted here and not handed over."""

    def __init__(self, capacity: int = 1024, news: int = 4096) -> None:
        self._capacity = capacity
        self._most_news = news
        self._news: dict[int, list[int]] = {}  # chunk → [uses, tokens]
        self._table: dict[int, list[int]] = {}

    def count(self, chunk: int, tokens: float) -> None:
        """A request matched as far as `chunk`; `tokens` of it lie in the chosen replica's cache."""
        known = self._news.get(chunk)
        if known is None:
            self._news[chunk] = [1, int(tokens)]
            if len(self._news) > self._most_news:
                self.take()
        else:
            known[0] += 1
            if tokens > known[1]:
                known[1] = int(tokens)

    def take(self) -> dict[int, tuple[int, int]]:
        """Chunk → (uses, tokens) since the last call."""
        news, self._news = self._news, {}
        for chunk, (uses, tokens) in news.items():
            known = self._table.setdefault(chunk, [0, 0])
            known[0] += uses
            known[1] = max(known[1], tokens)
        while len(self._table) > self._capacity:
            self._fade()
        return {chunk: (uses, tokens) for chunk, (uses, tokens) in news.items()}

    def top(self, number: int) -> list[dict[str, Any]]:
        best = heapq.nlargest(min(number, self._capacity), self._counts().items(), key=lambda item: item[1][0])
        return [{"chunk": f"{chunk:016x}", "tokens": tokens, "count": uses} for chunk, (uses, tokens) in best]

    def _counts(self) -> dict[int, tuple[int, int]]:
        both = {chunk: (uses, tokens) for chunk, (uses, tokens) in self._table.items()}
        for chunk, (uses, tokens) in self._news.items():
            known = both.get(chunk, (0, 0))
            both[chunk] = (known[0] + uses, max(known[1], tokens))
        return both

    def _fade(self) -> None:
        """Halves until a quarter of the table is free, or only large counts are left."""
        while len(self._table) > self._capacity * 3 // 4:
            self._table = {chunk: [uses // 2, tokens] for chunk, (uses, tokens) in self._table.items() if uses > 1}
