"""vLLM's limit of running requests: what the adaptive one moves, and what it watches."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from plumage_engine.vllm.compat.checks import Live, missing_live

__all__ = ["LIVE", "complaints"]

LIVE: Live = {Scheduler: ("kv_cache_manager", "max_num_active_reqs", "running")}


def complaints(scheduler: Any) -> list[str]:
    """What the adaptive limit needs and this scheduler, just made, does not have."""
    return missing_live(LIVE, scheduler)
