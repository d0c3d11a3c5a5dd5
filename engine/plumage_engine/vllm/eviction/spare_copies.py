"""Finds spare copies of cached blocks: two requests that compute one prefix at the same time both keep theirs.

A hash has one spare copy for each beyond the first that is in use or kept. Free spare copies are evicted first, since
their content stays cached. At least one copy of every hash is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from plumage_engine.vllm.compat.block_pool import BlockPool, KVCacheBlock

__all__ = ["SpareCopies", "copies_of"]


def copies_of(pool: BlockPool, name: Any) -> Sequence[KVCacheBlock]:
    """The blocks cached under a hash; vLLM stores a single one without a table."""
    found = pool.cached_block_hash_to_block._cache.get(name)
    if found is None:
        return ()
    return tuple(found.values()) if isinstance(found, dict) else (found,)


class SpareCopies:
    """spare: free copies that may be evicted first, by block id, oldest first.
    several: hashes that had several copies.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.spare: dict[int, KVCacheBlock] = {}
        self.several: set[Any] = set()
        self._pool = pool

    def used(self, name: Any) -> list[KVCacheBlock]:
        """A copy of `name` came into use: with several copies, all free ones are spare. Returns these."""
        copies = copies_of(self._pool, name)
        if len(copies) < 2:
            self.several.discard(name)
            return []
        self.several.add(name)
        for copy in copies:
            self.spare.pop(copy.block_id, None)
        free = [copy for copy in copies if not copy.ref_cnt]
        self.spare.update((copy.block_id, copy) for copy in free)
        return free

    def freed(self, block: KVCacheBlock) -> None:
        """A copy became free; it is spare if another is in use or kept."""
        others = [copy for copy in copies_of(self._pool, block.block_hash) if copy is not block]
        if not others:
            self.several.discard(block.block_hash)
        elif any(copy.block_id not in self.spare for copy in others):
            self.several.add(block.block_hash)
            self.spare[block.block_id] = block

    def removed(self, block: KVCacheBlock, name: Any) -> None:
        """A copy left the cache; if all remaining ones were spare, one of them is kept."""
        if not self.several:
            return
        self.spare.pop(block.block_id, None)
        left = copies_of(self._pool, name)
        if len(left) < 2:
            self.several.discard(name)
        if left and all(copy.block_id in self.spare for copy in left):
            del self.spare[left[0].block_id]

    def forget(self, name: Any) -> None:
        """Forgets a block: no copy of it is spare any more."""
        if name in self.several:
            self.several.discard(name)
            for copy in copies_of(self._pool, name):
                self.spare.pop(copy.block_id, None)

    def take(self, most: int) -> list[KVCacheBlock]:
        """Remove and return up to `most` spare copies, to be evicted now."""
        return [self.spare.pop(block_id) for block_id in list(islice(self.spare, most))]

    def clear(self) -> None:
        """The cache was emptied."""
        self.spare.clear()
        self.several.clear()
