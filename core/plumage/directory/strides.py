"""Where the chunks of well-trodden strides stand, so that eight look-ups are made in one sweep of C code.

Most requests begin with chunks that others began with. Eight of them in a row, at a multiple of eight, make a stride;
for those that were matched before, the table and the key of each chunk are kept ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

__all__ = ["KEY", "SHIFT", "Strides"]

SHIFT = 58  # 64-bit chunk >> 58 = the table it stands in
KEY = (1 << 60) - 1  # its key there
KEPT = 4096  # strides, 0.7 KB each

Places = tuple[Sequence[int], tuple[dict[int, int], ...], tuple[int, ...]]


class Strides:
    """Of a mirror's tables, in strides of `length`. Chains are compared, not trusted: a hit is exact."""

    def __init__(self, tables: Sequence[dict[int, int]], length: int = 8) -> None:
        self.length = length
        self._tables = tables
        self._places: dict[int, Places] = {}

    def walk(self, chain: Sequence[int], alive: int) -> tuple[int, int, int]:
        """As far as whole strides tell: how many chunks from the beginning of `chain` on have the same owners, the
        value of the last of them, and which of `alive` these owners are."""
        at = last = 0
        length, known = self.length, self._places
        for end in range(length - 1, len(chain), length):
            places = known.get(chain[end])
            if places is None or places[0] != chain[at : end + 1]:
                break
            values: list[Any] = [*map(dict.get, places[1], places[2])]
            try:
                owners = reduce(and_, values, alive)
                if owners != alive and (at or not owners or owners != values[0] & alive):
                    break
            except TypeError:  # one of them is gone
                break
            at, last, alive = end + 1, values[-1], owners
        return at, last, alive

    def remember(self, chain: Sequence[int], first: int, last: int) -> None:
        """`chain[first:last]` was matched; `first` is a multiple of the length."""
        length = self.length
        for start in range(first, last - length + 1, length):
            chunks = chain[start : start + length]
            tables = tuple([self._tables[chunk >> SHIFT] for chunk in chunks])
            if len(self._places) >= KEPT:
                self._places.clear()
            self._places[chunks[-1]] = chunks, tables, tuple([chunk & KEY for chunk in chunks])
