"""Fewer requests run while preemptions tell of pressure on KV memory (the article §4.2; decision 0091)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plumage.batching.limit import BatchLimit

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.base import Scheduler, SchedulerOutput

__all__ = ["AdaptiveLimit"]


class AdaptiveLimit:
    """vLLM's limit of running requests, moved after each step and never above what it was."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._most: int = scheduler.max_num_active_reqs
        self._limit = BatchLimit(self._most)

    def scheduled(self, output: SchedulerOutput) -> None:
        if not output.preempted_req_ids and self._limit.limit == self._most:
            return  # nothing presses, and there is nowhere to rise to
        running, preempted = len(self._scheduler.running), len(output.preempted_req_ids or ())
        usage, ended = self._scheduler.kv_cache_manager.usage, len(output.finished_req_ids)
        self._limit.observe(running, preempted, usage, ended)
        self._scheduler.max_num_active_reqs = self._limit.limit

    def lift(self) -> None:
        """Give vLLM's own limit back."""
        self._scheduler.max_num_active_reqs = self._most
