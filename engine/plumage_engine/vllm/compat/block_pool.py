"""vLLM's block pool: what the eviction order derives from, calls, and reads of blocks and of the free list.

The coordinator makes the pool and every manager holds it, so the class of the live object is changed, not the object.
Blocks with a hash are cached; those in the free list (`prev_free_block` and `next_free_block`) are free.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SinkFullAttentionManager
from vllm.v1.request import Request

from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = [
    "LIVE",
    "SURFACE",
    "BlockPool",
    "FreeKVCacheBlockQueue",
    "KVCacheBlock",
    "full_attention_groups",
    "problems",
]

SURFACE: Surface = {
    BlockPool: (
        "get_new_blocks(num_blocks)",
        "cache_full_blocks(blocks, num_cached_blocks, num_full_blocks, kv_cache_group_id)",
        "_remove_cached_block_hashes(block)",
        "touch(blocks)",
        "free_blocks(ordered_blocks)",
        "reset_prefix_cache",
        "_insert_block_hash",
    ),
    BlockHashToBlockMap: ("get_one_block(key)",),
    FreeKVCacheBlockQueue: ("popleft_n(n)",),
    KVCacheBlock: (
        "block_id",
        "ref_cnt",
        "block_hash",
        "block_hash_num_tokens",
        "is_null",
        "prev_free_block",
        "next_free_block",
    ),
}
LIVE: Live = {
    BlockPool: (
        "blocks",
        "free_block_queue",
        "cached_block_hash_to_block",
        "num_gpu_blocks",
        "enable_caching",
        "null_block",
    ),
    FreeKVCacheBlockQueue: ("fake_free_list_head", "num_free_blocks"),
    BlockHashToBlockMap: ("_cache",),
    Request: ("cache_salt",),
}


def problems(scheduler: Any) -> list[str]:
    """What the eviction order needs and this scheduler's pool does not have."""
    try:
        pool = scheduler.kv_cache_manager.block_pool
    except AttributeError as error:
        return [f"its block pool was moved: {error}"]
    if type(pool) is not BlockPool:
        return [f"its block pool is a {type(pool).__name__}, not vLLM's BlockPool"]
    known = getattr(pool, "cached_block_hash_to_block", None)
    live = (pool, getattr(pool, "free_block_queue", None), known)
    gone = [line for one in live for line in missing_live(LIVE, one)]
    if not isinstance(getattr(known, "_cache", None), dict):
        gone.append("the map of cached blocks has no dictionary _cache")
    if not isinstance(live[1], FreeKVCacheBlockQueue):
        gone.append("its free list is not vLLM's FreeKVCacheBlockQueue")
    return missing(SURFACE) + gone


def full_attention_groups(scheduler: Any) -> frozenset[int]:
    """Ids of the KV-cache groups in which a block is useful only together with all blocks before it."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    kinds = (FullAttentionManager, SinkFullAttentionManager)
    return frozenset(manager.kv_cache_group_id for manager in managers if type(manager) in kinds)
