"""The blocks that the attention of a step reads, updated as blocks and requests are added and removed.

A decode reads all its blocks. A prefill reads the blocks that it found in the cache; its own blocks do not count until
it decodes. The simulator counts in the same way. Blocks are physical, not hashes: two copies of the same tokens are at
two places, so a device's caches can not treat them as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plumage_engine.simulator.engine.shared_prefix import SharedPrefix

__all__ = ["Readers"]


class Readers:
    """Requests by id, each with its list of blocks. The list of a decode may only be extended through `grow`."""

    def __init__(self) -> None:
        self._decodes: dict[str, list[int]] = {}
        self._prefills: dict[str, list[int]] = {}
        self._counts: dict[int, int] = {}  # readers of each block
        self._shared = SharedPrefix()

    def __len__(self) -> int:
        return len(self._decodes) + len(self._prefills)

    @property
    def distinct(self) -> int:
        """The number of different blocks that are read."""
        return len(self._counts)

    @property
    def shared(self) -> int:
        """The number of leading blocks that all decodes have in common."""
        return self._shared.blocks

    def prefill(self, request_id: str, found: list[int]) -> None:
        """The request is in prefill, after the blocks `found` in the cache."""
        self.leave(request_id)
        self._prefills[request_id] = found
        self._count(found)

    def decode(self, request_id: str, blocks: list[int]) -> None:
        """The request decodes from now on. Changes nothing if it does already."""
        if request_id in self._decodes:
            return
        self.leave(request_id)
        self._decodes[request_id] = blocks
        self._count(blocks)
        self._shared.add(request_id, blocks)

    def grow(self, request_id: str, blocks: Sequence[int]) -> None:
        """The request, if it decodes, got more blocks at its end."""
        if request_id in self._decodes:
            self._count(blocks)

    def leave(self, request_id: str) -> None:
        """Removes the request, if it reads."""
        if request_id in self._decodes:
            self._uncount(self._decodes.pop(request_id))
            self._shared.remove(request_id)
        elif request_id in self._prefills:
            self._uncount(self._prefills.pop(request_id))

    def keep(self, decodes: list[str]) -> None:
        """Only these requests decode in this step."""
        if len(decodes) < len(self._decodes):
            for request_id in self._decodes.keys() - set(decodes):
                self.leave(request_id)

    def _count(self, blocks: Iterable[int]) -> None:
        counts = self._counts
        for block in blocks:
            counts[block] = counts.get(block, 0) + 1

    def _uncount(self, blocks: Iterable[int]) -> None:
        counts = self._counts
        for block in blocks:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]
