"""What each replica probably caches, from the router's own routing alone, without reports of engines.

Chunk hashes are chained, so a set of them is a tree: a prompt's prefix is cached up to the first missing chunk. Each
slot has its chunks in least-recently-used order. Parents are touched after their children, so the first dropped chunk
is always a leaf. A slot has at most `capacity` chunks. The index may be wrong, since engines evict on their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

__all__ = ["PrefixIndex"]


class PrefixIndex:
    """Each slot is one bit of a chunk's owner mask, so the cost of a match does not depend on the number of slots."""

    __slots__ = ("_capacity", "_held", "_owners")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._owners: dict[int, int] = {}
        self._held: dict[int, OrderedDict[int, None]] = {}

    def match(self, chunks: Sequence[int]) -> Mapping[int, int]:
        """slot → number of leading chunks that it has. Slots without any are absent."""
        found: dict[int, int] = {}
        alive = -1
        for depth, chunk in enumerate(chunks):
            still = self._owners.get(chunk, 0) & alive
            if still != alive:
                if depth:
                    _note(found, alive & ~still, depth)
                if not still:
                    return found
                alive = still
        if chunks:
            _note(found, alive, len(chunks))
        return found

    def insert(self, slot: int, chunks: Sequence[int]) -> None:
        """This prompt was sent to `slot`. If the slot exceeds its capacity, its coldest leaves are dropped."""
        held = self._held.setdefault(slot, OrderedDict())
        bit = 1 << slot
        owners = self._owners
        for chunk in reversed(chunks):
            if chunk in held:
                held.move_to_end(chunk)
            else:
                owners[chunk] = owners.get(chunk, 0) | bit
                held[chunk] = None
        while len(held) > self._capacity:
            self._disown(slot, held.popitem(last=False)[0])

    def size(self, slot: int) -> int:
        """The number of the slot's chunks, which is the size of its tree."""
        return len(self._held.get(slot, ()))

    def forget(self, slot: int) -> None:
        for chunk in self._held.pop(slot, ()):
            self._disown(slot, chunk)

    def _disown(self, slot: int, chunk: int) -> None:
        left = self._owners[chunk] & ~(1 << slot)
        if left:
            self._owners[chunk] = left
        else:
            del self._owners[chunk]


def _note(found: dict[int, int], mask: int, depth: int) -> None:
    """The slots of `mask` have `depth` chunks."""
    while mask:
        low = mask & -mask
        found[low.bit_length() - 1] = depth
        mask ^= low
