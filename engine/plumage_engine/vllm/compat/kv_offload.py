"""vLLM's KV offloading, its least stable surface: the connector's scheduler half, the manager, the worker, the pool.

0.33 wraps `build_connector_meta` and `update_connector_output` in a lock and calls underscored methods inside it;
`inside_lock` names the one to override.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_events import BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import OffloadingEventsTracker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.platforms import current_platform
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    generate_block_hash_extra_keys,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingKVEventsConfig,
    OffloadingManager,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = [
    "BUILD",
    "LIVE",
    "MANAGER",
    "PROMOTION",
    "UPDATE",
    "BlockStored",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUOffloadingSpec",
    "CanonicalKVCaches",
    "GPULoadStoreSpec",
    "LRUCachePolicy",
    "OffloadKey",
    "OffloadingConfig",
    "OffloadingConnectorMetadata",
    "OffloadingConnectorScheduler",
    "OffloadingEventsTracker",
    "OffloadingKVEventsConfig",
    "OffloadingManager",
    "OffloadingWorker",
    "OffloadingWorkerMetadata",
    "PrepareStoreOutput",
    "ReqContext",
    "TransferJob",
    "TransferResult",
    "copies_itself",
    "generate_block_hash_extra_keys",
    "make_block_hash_with_group_id",
    "make_lru",
    "manager_problems",
    "maybe_convert_block_hash",
    "positions",
    "promotion_problems",
    "to_event_extra_keys",
]

MANAGER: Surface = {
    CPUOffloadingManager: (
        "prepare_store(keys, req_context)",
        "prepare_load(keys, req_context)",
        "_prepare_load(keys, req_context, record_access)",
        "complete_load(keys, req_context)",
        "_get_num_free_chunks",
    ),
    CachePolicy: (
        "get(key)",
        "insert(key, chunk)",
        "remove(key)",
        "touch(keys, req_context)",
        "on_store_miss(keys, req_context)",
        "on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)",
        "evict(n, protected)",
        "clear",
        "mark_evictable(key)",
        "mark_non_evictable(key)",
    ),
    ReqContext: ("get_state(cls)", "set_state(val)", "get_offload_key_position(key)"),
}
"""What selective admission needs."""

PROMOTION: Surface = {
    OffloadingConnectorScheduler: (
        "build_connector_meta(scheduler_output)",
        "update_connector_output(connector_output)",
        "get_num_new_matched_tokens(request, num_computed_tokens)",
        "has_pending_push_work",
        "reset_cache",
        "_generate_job_id",
    ),
    BlockPool: (
        "get_cached_block(block_hash, kv_cache_group_ids)",
        "evict_blocks(block_ids)",
        "touch(blocks)",
        "free_blocks(ordered_blocks)",
        "get_num_free_blocks",
        "_insert_block_hash(block_hash_with_group_id, block, num_tokens)",
    ),
    KVCacheManager: ("reset_prefix_cache",),
    OffloadingEventsTracker: ("_build_event_metadata(req, group_config, chunk_idx)",),
}
"""What promotion needs."""

LIVE: Live = {
    OffloadingConnectorScheduler: (
        "config",
        "manager",
        "_req_status",
        "_jobs",
        "_chunks_being_loaded",
        "_current_batch_load_jobs",
        "_current_batch_jobs_to_flush",
        "_current_batch_allocated_block_ids",
        "_events_tracker",
    ),
    OffloadingEventsTracker: ("_pending_event_metadata",),
    ReqContext: ("_offload_key_positions",),
    BlockPool: ("free_block_queue", "kv_event_queue", "enable_kv_cache_events", "medium"),
    FreeKVCacheBlockQueue: ("fake_free_list_head",),
}


def inside_lock(name: str) -> str:
    """The method that a subclass overrides to do the work of `name`."""
    return f"_{name}" if hasattr(OffloadingConnectorScheduler, f"_{name}") else name


BUILD = inside_lock("build_connector_meta")
UPDATE = inside_lock("update_connector_output")


def manager_problems() -> list[str]:
    """What selective admission needs and this vLLM does not have."""
    gone = missing(MANAGER)
    if not isinstance(getattr(ReqContext("check"), "_offload_key_positions", None), dict):
        gone.append("ReqContext has no _offload_key_positions")
    return gone


def promotion_problems(connector_scheduler: Any, pool: Any) -> list[str]:
    """What promotion needs and the live objects do not have."""
    queue = getattr(pool, "free_block_queue", None)
    tracker = getattr(connector_scheduler, "_events_tracker", None)
    live = (connector_scheduler, tracker, pool, queue)
    gone = missing(PROMOTION) + [line for one in live for line in missing_live(LIVE, one)]
    if not isinstance(connector_scheduler, OffloadingConnectorScheduler):
        gone.append(f"the connector's scheduler is a {type(connector_scheduler).__name__}, not vLLM's own")
    if not isinstance(queue, FreeKVCacheBlockQueue):
        gone.append("the block pool's free queue is not a linked list")
    return gone


def make_lru(capacity: int, chunks: Iterable[tuple[OffloadKey, Any]]) -> LRUCachePolicy:
    """vLLM's own policy with `chunks`, the first of which is evicted first. 0.33 also asks which request stored it."""
    policy = LRUCachePolicy(cache_capacity=capacity)
    extra = (ReqContext("plumage"),) if "req_context" in inspect.signature(policy.insert).parameters else ()
    for key, chunk in chunks:
        policy.insert(key, chunk, *extra)
    return policy


def positions(context: ReqContext) -> dict[OffloadKey, int]:
    """The tokens up to the end of each of a request's chunks, by key, root first within a group."""
    found: dict[OffloadKey, int] = context._offload_key_positions
    return found


def copies_itself() -> bool:
    """Whether vLLM's own worker runs on this platform."""
    return bool(current_platform.is_cuda_alike() or current_platform.is_xpu())
