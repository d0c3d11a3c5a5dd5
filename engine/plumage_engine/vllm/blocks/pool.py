"""vLLM's block pool with the order of eviction told what happens in it.

vLLM's methods are called by name, not by `super()`, and the guard is asked: a failing hook turns the pool back into
vLLM's class while methods of this one are on their way. Each does vLLM's own work whatever happens to ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from plumage_engine.vllm.blocks.eviction_order import EvictionOrder
from plumage_engine.vllm.compat.block_pool import BlockPool, KVCacheBlock
from plumage_engine.vllm.guard import Guard

__all__ = ["OrderedPool"]


class OrderedPool(BlockPool):
    """The class that a live pool is given (`install`). plumage: the order; gone after a failure."""

    plumage: EvictionOrder
    plumage_guard: Guard

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        try:
            if self.plumage_guard.on:
                self.plumage.make_room(num_blocks)
        except Exception as error:
            self.plumage_guard.failed(error)
        taken: list[KVCacheBlock] = BlockPool.get_new_blocks(self, num_blocks)
        return taken

    def cache_full_blocks(
        self,
        request: Any,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        BlockPool.cache_full_blocks(
            self, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, *args, **kwargs
        )
        try:
            if self.plumage_guard.on:
                self.plumage.cached(blocks, num_cached_blocks, num_full_blocks, kv_cache_group_id)
        except Exception as error:
            self.plumage_guard.failed(error)

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        BlockPool.touch(self, blocks)
        try:
            if self.plumage_guard.on:
                self.plumage.touched(blocks)
        except Exception as error:
            self.plumage_guard.failed(error)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        blocks = list(ordered_blocks)
        BlockPool.free_blocks(self, blocks)
        try:
            if self.plumage_guard.on:
                self.plumage.freed(blocks)
        except Exception as error:
            self.plumage_guard.failed(error)

    def _remove_cached_block_hashes(self, block: KVCacheBlock) -> list[Any]:
        removed: list[Any] = BlockPool._remove_cached_block_hashes(self, block)
        try:
            if block.ref_cnt or self.plumage.state[block.block_id]:  # else the order itself has just given it up
                self.plumage.uncached(block, removed)
        except Exception as error:
            self.plumage_guard.failed(error)
        return removed

    def reset_prefix_cache(self) -> bool:
        done: bool = BlockPool.reset_prefix_cache(self)
        try:
            if done and self.plumage_guard.on:
                self.plumage.reset()
        except Exception as error:
            self.plumage_guard.failed(error)
        return done
