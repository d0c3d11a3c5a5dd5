"""Which prefixes an engine probably has in its cache, as a queue can know it: those of the requests it admitted.

LPM and DFS-W order by the *cached* prefix (SGLang's radix cache). A bounded record stands for that cache; it is closed
under ancestors, because a chain is always touched from its deepest level up, so the root is the most recent.
"""

from __future__ import annotations

from collections import OrderedDict

from plumage.batching.interface import Level, Vector

__all__ = ["PrefixRecord"]


class PrefixRecord:
    """At most `capacity` chunk hashes, least recently admitted out."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[Level, None] = OrderedDict()

    def note(self, vector: Vector) -> None:
        for level in reversed(vector):
            self._seen[level] = None
            self._seen.move_to_end(level)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def depth(self, vector: Vector) -> int:
        """Leading levels on record: a binary search, since the record is closed under ancestors."""
        low, high = 0, len(vector)
        while low < high:
            middle = (low + high + 1) // 2
            if vector[middle - 1] in self._seen:
                low = middle
            else:
                high = middle - 1
        return low
