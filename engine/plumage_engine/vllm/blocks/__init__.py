"""The order of eviction in vLLM's live block pool: core's policies in place of its LRU.

vLLM's linked list of free blocks stays its own and stays right: when blocks are asked for, those that go next are moved
to its front, and vLLM's code takes them from there. So at any moment the order can be given up, and vLLM goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from plumage.eviction import Randomness, make_policy
from plumage.eviction.hotness import Hotness
from plumage_engine.vllm.blocks.eviction_order import EvictionOrder
from plumage_engine.vllm.blocks.pool import OrderedPool
from plumage_engine.vllm.compat.block_pool import BlockPool, complaints, full_attention_groups
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.settings import PluginEviction

__all__ = ["EvictionOrder", "OrderedPool", "follow", "install", "uninstall"]

_DEFAULTS: dict[str, dict[str, Any]] = {"Rlt": {"at_once": 8}}
"""Options for an engine, where they differ from the policy's own."""

_log = logging.getLogger("vllm.plumage")


def install(
    scheduler: Any,
    config: PluginEviction,
    guard: Guard,
    counters: Counters,
    rng: Randomness,
    clock: Callable[[], float],
) -> EvictionOrder | None:
    """Order the eviction of a scheduler just made by `config.policy`; None, and nothing changed, where it can't be or
    nothing is cached. The guard's fall-back becomes `uninstall`. clock: seconds. ConfigurationError for a policy that
    there isn't."""
    reasons = complaints(scheduler)
    if reasons:
        guard.refuse(reasons)
        return None
    pool, groups = scheduler.kv_cache_manager.block_pool, full_attention_groups(scheduler)
    if not pool.enable_caching or not groups:
        guard.on, guard.reason = False, "nothing to order: prefix caching is off, or no layer attends to all tokens"
        _log.info("plumage: %s: %s", guard.feature, guard.reason)
        return None
    capacity = max(1, pool.num_gpu_blocks - 1)  # one is vLLM's null block
    options = {**_DEFAULTS.get(config.policy, {}), **config.options}
    policy = make_policy(config.policy, capacity=capacity, rng=rng, **options)
    pool.plumage = EvictionOrder(pool, policy, groups, counters, clock, label=config.policy)
    pool.plumage_guard = guard
    guard.fall_back = lambda: uninstall(pool)
    pool.__class__ = OrderedPool
    order: EvictionOrder = pool.plumage
    return order


def follow(scheduler: Any, prior: Callable[[int], float | None]) -> None:
    """Eviction by hotness counts the pool's uses of a block from now on; where another order is, nothing changes.
    prior: by block hash, 64 bits as KV events tell it; None where the pool said nothing of it of late."""
    order = getattr(scheduler.kv_cache_manager.block_pool, "plumage", None)
    policy = None if order is None else order.policy
    if isinstance(policy, Hotness):
        policy.pooled = lambda name: prior(int.from_bytes(name[-12:-4], "big"))  # what follows is the group


def uninstall(pool: Any) -> None:
    """Give vLLM its own order back. Its blocks, map and list are as it left them, so nothing is to be repaired."""
    if isinstance(pool, OrderedPool):
        pool.__class__ = BlockPool
        del pool.plumage
