"""What every waiting queue keeps: waiting and running requests, preempted requests, and the ageing bound.

`Fcfs`, the simplest queue, admits in the order of arrival.

A policy chooses a request (`_pick`). Three rules come before it:

- Preempted requests come first, the last preempted ahead of the others.
- A request that has waited for `max_wait` seconds is overdue. The oldest of these is admitted next. A queue may let
  other overdue ones precede it, and any follow it (`_overdue`).
- With nothing active there is no STOP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict

from plumage.batching.bounds import within
from plumage.batching.interface import Candidate, RequestId, StepOutcome
from plumage.defaults import MAX_WAIT_SECONDS
from plumage.errors import StateError

__all__ = ["MAX_WAIT", "Fcfs", "WaitingQueue"]

MAX_WAIT = float(MAX_WAIT_SECONDS)


class WaitingQueue(ABC):
    """A `BatchQueue` without the choice. OrderedDicts, because the first key of a plain dict is found in O(deleted).

    tip_loss: levels of the prefix shared by all active requests that admissions have cost so far; 0 where the policy
    knows of none."""

    def __init__(self, *, max_wait: float = MAX_WAIT) -> None:
        self.max_wait = within("max_wait", max_wait, 0)
        self.tip_loss = 0
        self._front: OrderedDict[RequestId, Candidate] = OrderedDict()
        self._waiting: OrderedDict[RequestId, Candidate] = OrderedDict()
        self._active: dict[RequestId, Candidate] = {}

    @property
    def active(self) -> int:
        return len(self._active)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._front)

    def insert(self, candidate: Candidate) -> None:
        request_id = candidate.request_id
        if candidate.arrival != candidate.arrival:
            raise StateError(f"request {request_id!r}: arrival must be a number, got NaN")
        if request_id in self._waiting or request_id in self._active or request_id in self._front:
            raise StateError(f"request {request_id!r} is in the queue already")
        self._waiting[request_id] = candidate
        self._joined(candidate)

    def select(self, now: float) -> RequestId | None:
        if self._front:
            return next(iter(self._front))
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        if now - oldest.arrival >= self.max_wait:
            return self._overdue(oldest, now)
        return self._pick(now)

    def add(self, request_id: RequestId) -> None:
        candidate = self._waiting.pop(request_id, None) or self._front.pop(request_id, None)
        if candidate is None:
            raise StateError(f"request {request_id!r} is not waiting")
        self._active[request_id] = candidate
        self._started(candidate)

    def finish(self, request_id: RequestId) -> None:
        self._ended(self._take_active(request_id))

    def remove(self, request_id: RequestId) -> None:
        candidate = self._waiting.pop(request_id, None)
        if candidate is not None:
            self._left(candidate)
        self._front.pop(request_id, None)

    def requeue(self, request_id: RequestId) -> None:
        candidate = self._take_active(request_id)
        self._ended(candidate)
        self._front[request_id] = candidate
        self._front.move_to_end(request_id, last=False)

    def _take_active(self, request_id: RequestId) -> Candidate:
        candidate = self._active.pop(request_id, None)
        if candidate is None:
            raise StateError(f"request {request_id!r} is not active")
        return candidate

    def observe(self, outcome: StepOutcome) -> None:
        """Learns from a step; most policies learn nothing."""

    def _overdue(self, oldest: Candidate, now: float) -> RequestId:
        """The choice while `oldest` is overdue: the oldest itself, unless a queue knows what should precede or follow
        it."""
        return oldest.request_id

    @abstractmethod
    def _pick(self, now: float) -> RequestId | None:
        """The policy's own choice among the waiting, or None for STOP (never with nothing active)."""

    def _joined(self, candidate: Candidate) -> None:
        """A request waits from now on."""

    def _left(self, candidate: Candidate) -> None:
        """A waiting request was aborted."""

    def _started(self, candidate: Candidate) -> None:
        """A request is active from now on: it waited, or it comes back from the front lane."""

    def _ended(self, candidate: Candidate) -> None:
        """A request is active no longer."""


class Fcfs(WaitingQueue):
    """First come, first served, as vLLM's own queue. It never stops, and every operation is O(1)."""

    def _pick(self, now: float) -> RequestId | None:
        return next(iter(self._waiting))
