"""The device's side of a promotion: which blocks of vLLM's pool are evicted, and hot chunks in their place.

vLLM's free list shows which blocks were idle longest, under any eviction order. A request frees its blocks from the
end, so the deepest of a chain stands first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any

from plumage_engine.vllm.compat.kv_offload import (
    BlockStored,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
    to_event_extra_keys,
)

__all__ = ["DeviceBlocks"]

Key = bytes
_GROUP_BYTES = 4


class DeviceBlocks:
    """pool: vLLM's live block pool.
    group: the KV group whose blocks are promoted.
    tokens: in a block.
    evicted: called with the number of cached blocks that were evicted for a promotion.
    """

    def __init__(self, pool: Any, group: int, tokens: int, evicted: Callable[[int], None] = lambda count: None) -> None:
        self.pool = pool
        self.group = group
        self._tokens = tokens
        self._evicted = evicted

    @property
    def free(self) -> int:
        """Blocks that no request uses, cached or not."""
        return int(self.pool.get_num_free_blocks())

    def holds(self, key: Key) -> bool:
        """Whether a request would find the chunk on the device."""
        return self.pool.get_cached_block(key[:-_GROUP_BYTES], [self.group]) is not None

    def empty(self, limit: int) -> list[Any]:
        """Up to `limit` free blocks without content."""
        return list(islice(takewhile(lambda block: block.block_hash is None, self._listed()), limit))

    def leaves(self, limit: int, kept: Collection[bytes] = ()) -> list[Any]:
        """Up to `limit` free cached blocks, the deepest of a chain first.

        kept: none with these hashes; up to four times `limit` blocks are examined for that.
        """
        cached = (block for block in self._listed() if block.block_hash is not None)
        if kept:
            looked_at = islice(cached, 4 * limit)
            cached = (block for block in looked_at if block.block_hash[:-_GROUP_BYTES] not in kept)
        return list(islice(cached, limit))

    def _listed(self) -> Iterator[Any]:
        """The free blocks in the order of vLLM's list. Do not move blocks while reading it."""
        block = self.pool.free_block_queue.fake_free_list_head.next_free_block
        while block is not None and block.block_id >= 0:
            yield block
            block = block.next_free_block

    def take(self, blocks: Sequence[Any]) -> None:
        """Take these free blocks, the deepest of a chain first, and evict their content."""
        cached = [block.block_id for block in blocks if block.block_hash is not None]
        for block_id in cached:
            self.pool.evict_blocks({block_id})
        self.pool.touch(blocks)
        self._evicted(len(cached))

    def free_taken(self, blocks: Sequence[Any]) -> None:
        """Free a chain's blocks, given root first; cached ones can be found and evicted."""
        self.pool.free_blocks(reversed(blocks))

    def place(self, keys: Sequence[Key], blocks: Sequence[Any], above: Key | None, start: int) -> list[Key]:
        """The blocks hold these chunks now, a chain that begins `start` chunks below its root.

        Returns the chunks that can be found from here on. They are none if the parent was evicted meanwhile, else those
        before the first that a request computed itself.
        """
        if above is not None and not self.holds(above):
            return []
        placed = list(takewhile(lambda key: not self.holds(key), keys))
        for depth, (key, block) in enumerate(zip(placed, blocks, strict=False), start + 1):
            self.pool._insert_block_hash(self._name(key), block, num_tokens=depth * self._tokens)
        order = getattr(self.pool, "plumage", None)
        if order is not None and placed:
            parent = None if above is None else self._name(above)
            order.inserted(blocks[: len(placed)], parent, root=parent is None)
        return placed

    def _name(self, key: Key) -> Any:
        return make_block_hash_with_group_id(key[:-_GROUP_BYTES], self.group)

    def publish(self, metadata: Any) -> None:
        """Publish that the chunk described by the connector's `metadata` is on the device now."""
        if not self.pool.enable_kv_cache_events:
            return
        above = metadata.parent_block_hash
        self.pool.kv_event_queue.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(one) for one in metadata.block_hashes],
                parent_block_hash=None if above is None else maybe_convert_block_hash(above),
                token_ids=list(metadata.token_ids),
                block_size=metadata.block_size,
                lora_id=metadata.lora_id,
                medium=self.pool.medium,
                lora_name=metadata.lora_name,
                extra_keys=to_event_extra_keys(metadata.extra_keys),
                group_idx=metadata.group_idx,
            )
        )
