"""What the chunks of well-trodden strides have in common, so that eight look-ups are one.

Most requests begin with chunks that others began with. Eight of them in a row, at a multiple of eight, make a stride;
of those that were matched before, the common owners are kept until one of their chunks changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any

__all__ = ["KEY", "OWNERS", "SHIFT", "Strides"]

SHIFT = 58  # 64-bit chunk >> 58 = the table it stands in
KEY = (1 << 60) - 1  # its key there
OWNERS = -1 << 24  # of a value; the rest is tokens
KEPT = 4096  # strides, 2 KB each


class _Stride:
    """`owners` of all its `chunks`, as in a mirror's values; 0 where that has to be read again. `first`, `last`: the
    values of the outer chunks then."""

    __slots__ = ("_keys", "_tables", "chunks", "first", "last", "owners")

    def __init__(self, chunks: Sequence[int], tables: Sequence[dict[int, int]], keys: Sequence[int]) -> None:
        self.chunks = chunks
        self._tables = tables
        self._keys = keys
        self.owners = self.first = self.last = 0

    def read(self) -> int:
        """The common owners; 0 without any, or if a chunk is gone."""
        values: list[Any] = [*map(dict.get, self._tables, self._keys)]
        if None not in values:
            self.owners = reduce(and_, values) & OWNERS
            self.first, self.last = values[0], values[-1]
        return self.owners


class Strides:
    """Of a mirror's tables, in strides of `length`. Chains are compared, not trusted: a hit is exact. Whoever changes
    or deletes a value calls `changed`, unless its key is not in `watched`."""

    def __init__(self, tables: Sequence[dict[int, int]], length: int = 8) -> None:
        self.length = length
        self.watched: dict[int, list[_Stride]] = {}
        self._tables = tables
        self._known: dict[int, _Stride] = {}
        self._made = 0

    def walk(self, chain: Sequence[int], alive: int) -> tuple[int, int, int]:
        """As far as whole strides tell: how many chunks from the beginning of `chain` on have the same owners, the
        value of the last of them, and which of `alive` these owners are."""
        at = last = 0
        length, known = self.length, self._known
        for end in range(length - 1, len(chain), length):
            stride = known.get(chain[end])
            if stride is None or stride.chunks != chain[at : end + 1]:
                break
            owners = (stride.owners or stride.read()) & alive
            if owners != alive and (at or not owners or owners != stride.first & alive):
                break
            at, last, alive = end + 1, stride.last, owners
        return at, last, alive

    def changed(self, keys: Iterable[int]) -> None:
        """The values of these keys are others, or gone."""
        for key in self.watched.keys() & keys:
            for stride in self.watched[key]:
                stride.owners = 0

    def remember(self, chain: Sequence[int], first: int, last: int) -> None:
        """`chain[first:last]` was matched; `first` is a multiple of the length."""
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
        stride = self._known[chunks[-1]] = _Stride(chunks, [self._tables[chunk >> SHIFT] for chunk in chunks], keys)
        for key in keys:
            self.watched.setdefault(key, []).append(stride)
