"""An estimate of the prefixes in an engine's cache, from what a queue knows: the requests that it admitted.

LPM and DFS-W order by the *cached* prefix (SGLang's radix cache). A bounded record replaces that cache. It contains the
ancestors of each entry, because a chain is always touched from its deepest level upwards, so the root is the most
recent.
"""

from __future__ import annotations

from collections import OrderedDict

from plumage.batching.interface import Level, Vector

__all__ = ["PrefixRecord"]


class PrefixRecord:
    """At most `capacity` chunk hashes. The least recently admitted one is dropped first."""

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
        """Leading levels in the record: a binary search, since the record contains all ancestors."""
        low, high = 0, len(vector)
        while low < high:
            middle = (low + high + 1) // 2
            if vector[middle - 1] in self._seen:
                low = middle
            else:
                high = middle - 1
        return low
