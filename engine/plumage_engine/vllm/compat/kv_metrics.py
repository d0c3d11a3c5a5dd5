"""What the cache's metrics read of vLLM's scheduler, its requests and its block pool."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from plumage_engine.vllm.compat.checks import Live, Read, Surface, missing, missing_live

__all__ = ["LIVE", "READ", "SURFACE", "RequestStatus", "problems"]

SURFACE: Surface = {BlockPool: ("_maybe_evict_cached_block(block)",)}
LIVE: Live = {Scheduler: ("hash_block_size", "kv_cache_manager", "requests", "running", "vllm_config")}
READ: Read = {
    CachedRequestData: ("resumed_req_ids",),
    NewRequestData: ("req_id",),
    RequestStatus: ("FINISHED_ABORTED",),
    Request: ("arrival_time", "block_hashes", "num_computed_tokens", "num_prompt_tokens", "num_tokens", "status"),
    SchedulerOutput: (
        "num_scheduled_tokens",
        "preempted_req_ids",
        "scheduled_cached_reqs",
        "scheduled_new_reqs",
        "scheduled_spec_decode_tokens",
        "total_num_scheduled_tokens",
    ),
}


def problems(scheduler: Any) -> list[str]:
    """What the metrics need and this scheduler, which was just made, does not have."""
    return missing(SURFACE) + missing_live(LIVE, scheduler)
