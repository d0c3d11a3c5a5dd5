"""vLLM's tiers below host memory: the manager, the memory that scheduler and workers map, the threads.

vLLM's manager of tiers tracks transfers and its file tier's threads run them; the tier itself is ours.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingEvent,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = [
    "LIVE",
    "TIERING",
    "CPUOffloadingWorker",
    "CPUPrimaryTierOffloadingManager",
    "DualQueueThreadPool",
    "JobResult",
    "LookupResult",
    "Medium",
    "OffloadingEvent",
    "RequestOffloadingContext",
    "ScheduleEndContext",
    "SecondaryTierManager",
    "SharedOffloadRegion",
    "TieringOffloadingManager",
    "TieringOffloadingSpec",
    "TransferJob",
    "problems",
]

TIERING: Surface = {
    TieringOffloadingManager: (
        "__init__(primary_tier, secondary_tiers)",
        "lookup(key, req_context, exclude_tier_idx)",
        "prepare_load(keys, req_context)",
        "on_request_finished(req_context, exclude_tier_idx)",
        "on_schedule_end(context)",
        "has_pending_work",
        "reset_cache",
        "create_store_job(keys, req_context, tier_idx)",
        "_should_store_to_tier(tier, num_blocks)",
    ),
    CPUPrimaryTierOffloadingManager: (
        "__init__(num_chunks, mmap_region, enable_events)",
        "get_kv_memoryview",
        "take_events",
    ),
    SecondaryTierManager: (
        "__init__(offloading_spec, primary_kv_view, tier_type)",
        "lookup(key, req_context)",
        "submit_store(job_metadata)",
        "submit_load(job_metadata)",
        "get_finished_jobs",
        "on_new_request(req_context)",
        "drain_jobs",
        "take_events",
        "shutdown",
    ),
    TransferJob: ("__init__(job_id, keys, chunk_ids)",),
    JobResult: ("__init__(job_id, success, successful_keys, transfer_time, transfer_bytes)",),
    OffloadingEvent: ("__init__(keys, medium, removed, removal_expected)",),
    DualQueueThreadPool: (
        "__init__(n_read_threads, n_write_threads, thread_name_prefix)",
        "enqueue_load(job_id, n_tasks, tasks)",
        "enqueue_store(job_id, n_tasks, tasks)",
        "get_finished",
        "shutdown(wait)",
    ),
    SharedOffloadRegion: (
        "__init__(engine_id, num_chunks, rank, kv_bytes_per_chunk, cpu_page_size)",
        "create_next_worker_view(tensor_page_size)",
        "create_kv_memoryview",
        "cleanup",
    ),
    CPUOffloadingWorker: ("__init__(kv_caches, blocks_per_chunk, num_cpu_chunks, mmap_region)",),
}
"""What a disk below host memory needs."""

LIVE: Live = {
    TieringOffloadingManager: ("_jobs",),
    CPUPrimaryTierOffloadingManager: ("prepare_write",),
    SharedOffloadRegion: ("mmap_path", "_creator"),
}


def problems(manager: TieringOffloadingManager, region: SharedOffloadRegion, parallel: Any) -> list[str]:
    """Why this vLLM, or this engine's layout, can't have a disk below its host memory.

    parallel: its ParallelConfig.
    """
    live = (manager, manager.primary_tier, region)
    gone = missing(TIERING) + [line for one in live for line in missing_live(LIVE, one)]
    if int(getattr(parallel, "nnodes_within_dp", 1)) != 1:
        gone.append("the engine's workers are on several nodes, and a disk can use the host memory of one")
    return gone
