"""vLLM's limit of running requests: what the adaptive limit changes and reads."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from plumage_engine.vllm.compat.checks import Live, missing_live

__all__ = ["LIVE", "problems"]

LIVE: Live = {Scheduler: ("kv_cache_manager", "max_num_active_reqs", "running")}


def problems(scheduler: Any) -> list[str]:
    """What the adaptive limit needs and this scheduler, which was just made, does not have."""
    return missing_live(LIVE, scheduler)
