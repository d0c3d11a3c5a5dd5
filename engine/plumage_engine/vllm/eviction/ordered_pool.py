"""Ties an eviction order to vLLM's live block pool: core's policies in place of its LRU.

vLLM's linked list of free blocks stays its own and stays valid. When blocks are requested, those to be evicted are
moved to its front, and vLLM's code takes them from there. So the order can be removed at any moment.

vLLM's methods are called by name, not by `super()`, and the guard is checked. A failing hook turns the pool back into
vLLM's class while methods of this one still run. Each method does vLLM's own work, whether or not ours fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plumage.eviction import make_policy
from plumage.eviction.hotness_formula import Hotness
from plumage.randomness import Randomness
from plumage.settings.engine_policies import EvictionConfig
from plumage_engine.vllm.compat.block_pool import BlockPool, KVCacheBlock, full_attention_groups, problems
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.eviction.eviction_order import EvictionOrder
from plumage_engine.vllm.guard import Guard

__all__ = ["EvictionOrder", "OrderedPool", "install", "uninstall", "use_pool_hotness"]

_DEFAULTS: dict[str, dict[str, Any]] = {"Rlt": {"at_once": 8}}
"""Options for an engine that differ from the policy's own defaults."""

_log = logging.getLogger("vllm.plumage")


def install(
    scheduler: Any,
    config: EvictionConfig,
    guard: Guard,
    counters: Counters,
    rng: Randomness,
    clock: Callable[[], float],
) -> EvictionOrder | None:
    """Order the eviction of a scheduler that was just made by `config.policy`. The guard's fall-back becomes
    `uninstall`.

    None, and nothing changed, where this vLLM lacks something or nothing is cached. ConfigurationError for an unknown
    policy.
    clock: seconds.
    """
    reasons = problems(scheduler)
    if reasons:
        guard.refuse(reasons)
        return None
    pool, groups = scheduler.kv_cache_manager.block_pool, full_attention_groups(scheduler)
    if not pool.enable_caching or not groups:
        guard.on, guard.reason = False, "nothing to order: prefix caching is off, or no layer attends to all tokens"
        _log.info("plumage: %s: %s", guard.feature, guard.reason)
        return None
    capacity = max(1, pool.num_gpu_blocks - 1)  # one block is vLLM's null block
    options = {**_DEFAULTS.get(config.policy, {}), **config.options}
    policy = make_policy(config.policy, capacity=capacity, rng=rng, **options)
    pool.plumage = EvictionOrder(pool, policy, groups, counters, clock, label=config.policy)
    pool.plumage_guard = guard
    guard.fall_back = lambda: uninstall(pool)
    pool.__class__ = OrderedPool
    order: EvictionOrder = pool.plumage
    return order


def use_pool_hotness(scheduler: Any, prior: Callable[[int], float | None]) -> None:
    """Let eviction by hotness count the pool's uses of a block from now on; other orders do not change.

    prior: uses by block hash, 64 bits as KV events have them; None where no valid report names it.
    """
    order = getattr(scheduler.kv_cache_manager.block_pool, "plumage", None)
    policy = None if order is None else order.policy
    if isinstance(policy, Hotness):
        policy.pooled = lambda name: prior(int.from_bytes(name[-12:-4], "big"))  # the last four bytes are the group


def uninstall(pool: Any) -> None:
    """Restore vLLM's own order. Its blocks, map and list are valid, so nothing needs repair."""
    if isinstance(pool, OrderedPool):
        pool.__class__ = BlockPool
        del pool.plumage


class OrderedPool(BlockPool):
    """The class that `install` gives to a live pool.

    plumage: the order; removed after a failure.
    """

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
                self.plumage.cached(blocks, num_cached_blocks, num_full_blocks, kv_cache_group_id, request.cache_salt)
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
            if block.ref_cnt or self.plumage.state[block.block_id]:  # else the order itself has just evicted it
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
