"""The caller gives each request's group: perfect prefix detection without cost (FEATHER §3.4, "User IDs").

A batch has requests of one group only. When it is empty, the group with the most waiting requests is next. It is an
upper bound for detection, not for scheduling: with small groups, requests of other groups could have filled the batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from plumage.batching.base import MAX_WAIT, WaitingQueue
from plumage.batching.interface import Candidate, RequestId

__all__ = ["Oracle"]


class Oracle(WaitingQueue):
    """Homogeneous batches by the caller's `group`. Requests without one share the group None."""

    def __init__(self, *, max_wait: float = MAX_WAIT) -> None:
        super().__init__(max_wait=max_wait)
        self._groups: dict[Hashable | None, OrderedDict[RequestId, None]] = {}

    def _pick(self, now: float) -> RequestId | None:
        if self._active:
            group = next(iter(self._active.values())).group
            return next(iter(self._groups.get(group, ())), None)
        fullest = max(self._groups.values(), key=len)
        return next(iter(fullest))

    def _joined(self, candidate: Candidate) -> None:
        self._groups.setdefault(candidate.group, OrderedDict())[candidate.request_id] = None

    def _left(self, candidate: Candidate) -> None:
        members = self._groups.get(candidate.group)
        if members is not None and members.pop(candidate.request_id, self) is None and not members:
            del self._groups[candidate.group]

    def _started(self, candidate: Candidate) -> None:
        self._left(candidate)
