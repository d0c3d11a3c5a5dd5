"""First come, first served: the order of arrival, and never STOP. What every other queue is compared with."""

from __future__ import annotations

from plumage.batching.base import WaitingQueue
from plumage.batching.interface import RequestId

__all__ = ["Fcfs"]


class Fcfs(WaitingQueue):
    """Vanilla vLLM's order. Every operation is O(1)."""

    def _pick(self, now: float) -> RequestId | None:
        return next(iter(self._waiting))
