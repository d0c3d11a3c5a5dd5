"""The prefix that all decoding requests share, kept while requests come and go.

This is FEATHER's quantity (§3.2, Takeaway 4): the prefix common to *all* requests of the batch. Hashes are chained, so
two requests agree on their first n blocks iff they agree on block n. A binary search finds where they differ. Every
member is compared with one of them, the *reference*, the youngest when it was chosen. Members leave roughly in the
order in which they came, so a new reference, which costs O(batch · log blocks), is rare.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["SharedPrefix", "common_blocks"]


def common_blocks(left: Sequence[int], right: Sequence[int]) -> int:
    """Leading blocks that two chained hash lists share. O(log n)."""
    low, high = 0, min(len(left), len(right))
    if high == 0 or left[0] != right[0]:
        return 0
    if left[high - 1] == right[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if left[middle] == right[middle]:
            low = middle + 1
        else:
            high = middle
    return low


class SharedPrefix:
    """The members' hash lists and the number of leading blocks common to all of them."""

    def __init__(self) -> None:
        self._members: dict[Hashable, Sequence[int]] = {}
        self._depth: dict[Hashable, int] = {}  # blocks shared with the reference
        self._counts: dict[int, int] = {}  # members by that depth
        self._reference: Hashable | None = None
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._members)

    @property
    def blocks(self) -> int:
        """Leading blocks common to all members; all of its own for a single one, 0 for none."""
        return self._blocks

    def add(self, key: Hashable, hashes: Sequence[int]) -> None:
        self._members[key] = hashes
        if self._reference is None:
            self._reference = key
        self._note(key, common_blocks(self._members[self._reference], hashes))
        self._blocks = min(self._counts)

    def remove(self, key: Hashable) -> None:
        del self._members[key]
        if key == self._reference:
            self._elect()
            return
        depth = self._depth.pop(key)
        self._counts[depth] -= 1
        if not self._counts[depth]:
            del self._counts[depth]
            self._blocks = min(self._counts)

    def _elect(self) -> None:
        self._reference = next(reversed(self._members), None)
        self._depth.clear()
        self._counts.clear()
        if self._reference is None:
            self._blocks = 0
            return
        reference = self._members[self._reference]
        for key, hashes in self._members.items():
            self._note(key, common_blocks(reference, hashes))
        self._blocks = min(self._counts)

    def _note(self, key: Hashable, depth: int) -> None:
        self._depth[key] = depth
        self._counts[depth] = self._counts.get(depth, 0) + 1
