"""Lowers the number of running requests while preemptions show pressure on KV memory (the article §4.2; 0091)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plumage.batching.limit import BatchLimit

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.base import Scheduler, SchedulerOutput

__all__ = ["AdaptiveLimit"]


class AdaptiveLimit:
    """Moves vLLM's limit of running requests after each step, and never above its first value."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._most: int = scheduler.max_num_active_reqs
        self._limit = BatchLimit(self._most)

    def scheduled(self, output: SchedulerOutput) -> None:
        if not output.preempted_req_ids and self._limit.limit == self._most:
            return  # no pressure, and the limit can't rise
        running, preempted = len(self._scheduler.running), len(output.preempted_req_ids or ())
        usage, ended = self._scheduler.kv_cache_manager.usage, len(output.finished_req_ids)
        self._limit.observe(running, preempted, usage, ended)
        self._scheduler.max_num_active_reqs = self._limit.limit

    def restore(self) -> None:
        """Restore vLLM's own limit."""
        self._scheduler.max_num_active_reqs = self._most
