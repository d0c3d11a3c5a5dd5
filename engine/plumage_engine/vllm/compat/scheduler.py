"""vLLM's scheduler: the classes from which ours derive, and the members that the queue and the hooks use.

0.32 names put-aside requests `deferred_waiting` and keeps requests that hold blocks in `kv_holding_waiting`, which
stays vLLM's own; `max_num_active_reqs` limits admission separately from the runner's slots.
"""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = [
    "LIVE",
    "SURFACE",
    "AsyncScheduler",
    "FCFSRequestQueue",
    "Request",
    "RequestQueue",
    "Scheduler",
    "SchedulerOutput",
    "problems",
]

SURFACE: Surface = {
    Scheduler: (
        "schedule",
        "update_from_output(scheduler_output, model_runner_output)",
        "_free_request(request)",
        "_preempt_request(request)",
        "add_request(request)",
    ),
    AsyncScheduler: ("schedule",),
    RequestQueue: (
        "add_request(request)",
        "peek_request",
        "pop_request",
        "prepend_request(request)",
        "prepend_requests(requests)",
        "remove_request(request)",
        "remove_requests(requests)",
    ),
}
LIVE: Live = {
    Scheduler: (
        "cache_config",
        "connector",
        "hash_block_size",
        "kv_cache_manager",
        "kv_holding_waiting",
        "max_num_active_reqs",
        "num_waiting_for_streaming_input",
        "policy",
        "requests",
        "running",
        "waiting",
    ),
}


def problems(scheduler: Scheduler) -> list[str]:
    """What the queue and the hooks need and this scheduler, which was just made, does not have."""
    return missing(SURFACE) + missing_live(LIVE, scheduler)
