"""The requests that decode, and what their attention reads together, kept up as blocks and requests come and go.

Physical blocks, not hashes: two copies of the same tokens lie in two places, and a device's caches can't know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from plumage_engine.simulator.shared import SharedPrefix, common_blocks

__all__ = ["Readers"]


class Readers:
    """Decoding requests by id, each with its list of blocks, which its owner may make longer through `grow` only."""

    def __init__(self) -> None:
        self._members: dict[str, list[int]] = {}
        self._counts: dict[int, int] = {}  # readers of each block
        self._shared = SharedPrefix()
        self._asked: list[str] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._members

    @property
    def distinct(self) -> int:
        """Different blocks that are read."""
        return len(self._counts)

    @property
    def shared(self) -> int:
        """Leading blocks that all have in common."""
        return self._shared.blocks

    def enter(self, request_id: str, blocks: list[int]) -> None:
        self._members[request_id] = blocks
        self._count(blocks)
        self._shared.add(request_id, blocks)

    def grow(self, request_id: str, blocks: Sequence[int]) -> None:
        """The request, if it decodes, got more blocks at the end of its own."""
        if request_id in self._members:
            self._count(blocks)

    def leave(self, request_id: str) -> None:
        """Tolerates who does not decode."""
        blocks = self._members.pop(request_id, None)
        if blocks is None:
            return
        for block in blocks:
            left = self._counts[block] - 1
            if left:
                self._counts[block] = left
            else:
                del self._counts[block]
        self._shared.remove(request_id)

    def keep(self, request_ids: list[str]) -> None:
        """All others leave: those that this step leaves out."""
        if len(request_ids) < len(self._members):
            for request_id in self._members.keys() - set(request_ids):
                self.leave(request_id)

    def ordered(self, request_ids: list[str]) -> bool:
        """Whether the members, in this order, are sorted by prefix: whoever shares blocks stands side by side.

        In such an order each block's readers follow each other, so that what a request does not share with the one
        before it is read for the first time: over all requests, the distinct blocks. O(members) unless they change.
        """
        if request_ids != self._asked:
            self._asked = list(request_ids)
            tables = [self._members[request_id] for request_id in request_ids]
            first = len(tables[0]) if tables else 0
            fresh = first + sum(len(table) - common_blocks(before, table) for before, table in pairwise(tables))
            self._sorted = fresh == self.distinct
        return self._sorted

    def _count(self, blocks: Sequence[int]) -> None:
        counts = self._counts
        for block in blocks:
            counts[block] = counts.get(block, 0) + 1
