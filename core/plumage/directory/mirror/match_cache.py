"""Stored results of prefix look-ups: one look-up in place of eight.

Most requests begin with chunks that earlier requests began with. Eight consecutive chunks, at a multiple of eight, make
a run. The cache keeps the common owners of each run that was matched before, until one of its chunks changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any

__all__ = ["KEY", "OWNERS", "SHIFT", "MatchCache"]

SHIFT = 58  # 64-bit chunk >> 58 = its table
KEY = (1 << 60) - 1  # mask of its key in that table
OWNERS = -1 << 24  # mask of the owners in a value; the rest is tokens
KEPT = 4096  # runs, 2 KB each


class _CachedRun:
    """`owners`: the common owners of all its `chunks`, as in a value; 0 when they must be read again. `first`, `last`:
    the values of the first and the last chunk at that time."""

    __slots__ = ("_keys", "_tables", "chunks", "first", "last", "owners")

    def __init__(self, chunks: Sequence[int], tables: Sequence[dict[int, int]], keys: Sequence[int]) -> None:
        self.chunks = chunks
        self._tables = tables
        self._keys = keys
        self.owners = self.first = self.last = 0

    def read(self) -> int:
        """Read the common owners; 0 if there are none, or if a chunk is missing."""
        values: list[Any] = [*map(dict.get, self._tables, self._keys)]
        if None not in values:
            self.owners = reduce(and_, values) & OWNERS
            self.first, self.last = values[0], values[-1]
        return self.owners


class MatchCache:
    """Caches look-ups in `tables`, in runs of `length` chunks. All chunks of a run are compared, so a hit is exact.
    Code that changes or deletes a value calls `changed`, unless its key is not in `watched`."""

    def __init__(self, tables: Sequence[dict[int, int]], length: int = 8) -> None:
        self.length = length
        self.watched: dict[int, list[_CachedRun]] = {}
        self._tables = tables
        self._known: dict[int, _CachedRun] = {}
        self._made = 0

    def walk(self, chain: Sequence[int], alive: int) -> tuple[int, int, int]:
        """Look up whole runs at the beginning of `chain`: (chunks with the same owners, value of the last one, mask of
        those owners within `alive`)."""
        at = last = 0
        length, known = self.length, self._known
        for end in range(length - 1, len(chain), length):
            run = known.get(chain[end])
            if run is None or run.chunks != chain[at : end + 1]:
                break
            owners = (run.owners or run.read()) & alive
            if owners != alive and (at or not owners or owners != run.first & alive):
                break
            at, last, alive = end + 1, run.last, owners
        return at, last, alive

    def changed(self, keys: Iterable[int]) -> None:
        """Notes that the values of these keys changed or were deleted."""
        for key in self.watched.keys() & keys:
            for run in self.watched[key]:
                run.owners = 0

    def remember(self, chain: Sequence[int], first: int, last: int) -> None:
        """Store the runs of `chain[first:last]`, which was matched; `first` is a multiple of the length."""
        length = self.length
        for start in range(first, last - length + 1, length):
            chunks = chain[start : start + length]
            known = self._known.get(chunks[-1])
            if known is None or known.chunks != chunks:
                self._make(chunks)

    def _make(self, chunks: Sequence[int]) -> None:
        if self._made >= KEPT:
            self._made = 0
            self._known.clear()
            self.watched.clear()
        self._made += 1
        keys = [chunk & KEY for chunk in chunks]
        run = self._known[chunks[-1]] = _CachedRun(chunks, [self._tables[chunk >> SHIFT] for chunk in chunks], keys)
        for key in keys:
            self.watched.setdefault(key, []).append(run)
