"""vLLM's scheduler: the classes that ours derive from, and the members that the queue and the hooks rely on.

0.32 calls what it put aside `deferred_waiting` and keeps requests that hold blocks in `kv_holding_waiting`, which stays
vLLM's own; `max_num_active_reqs` limits admission apart from the runner's slots.
"""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = [
    "SURFACE",
    "AsyncScheduler",
    "FCFSRequestQueue",
    "Request",
    "RequestQueue",
    "RequestStatus",
    "Scheduler",
    "SchedulerOutput",
    "complaints",
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
_LIVE = ("waiting", "kv_holding_waiting", "running", "requests", "policy", "hash_block_size", "max_num_active_reqs")


def complaints(scheduler: Scheduler) -> list[str]:
    """What the queue and the hooks need and this scheduler, just made, does not have."""
    gone = [f"the scheduler has no attribute {name}" for name in _LIVE if not hasattr(scheduler, name)]
    return missing(SURFACE) + gone
