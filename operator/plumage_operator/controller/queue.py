"""The work queue: which pools and gateways to reconcile, and when.

A key is reconciled by one worker at a time. A key that is added while it waits is reconciled once; a key that is added
while it is reconciled is reconciled once more. Failures wait longer each time, unless a change came meanwhile: it may
be the cure. The queue is bounded by the number of keys.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from plumage.backoff import delay
from plumage_operator.observability.health import Heartbeats

__all__ = ["QueueProgress", "WorkQueue"]

Key = TypeVar("Key", bound=Hashable)

_FIRST = 0.5  # seconds, after the first failure

_LONGEST = 60.0


class WorkQueue(Generic[Key]):
    """clock: monotonic seconds. jitter: a number from 0 to 1, so that simultaneous failures are not retried
    simultaneously.
    """

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._running: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()
        self.finished = 0
        """Reconciles that ended, with or without an error."""

    def add(self, key: Key, after: float = 0.0) -> None:
        """Reconcile `key` in so many seconds, or earlier if that was requested before."""
        due = self._clock() + after
        if key in self._running:
            self._again[key] = min(due, self._again.get(key, due))
            return
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._changed.set()

    async def take(self) -> Key:
        """The next key that is due. The caller must call `done`."""
        while True:
            self._changed.clear()
            wait = self._until_due()
            if wait <= 0:
                key = heapq.heappop(self._heap)[2]
                del self._due[key]
                self._running.add(key)
                return key
            try:
                async with asyncio.timeout(wait if wait != float("inf") else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _until_due(self) -> float:
        """Seconds until the first key is due. Drops entries that an earlier one replaced."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock() if self._heap else float("inf")

    def done(self, key: Key, *, failed: bool = False, after: float | None = None) -> None:
        """Ends a reconcile.

        failed: retry it with backoff.
        after: seconds until the next reconcile if nothing happens before; after a failure the least wait.
        """
        self._running.discard(key)
        self.finished += 1
        again = self._again.pop(key, None)
        requested = float("inf") if again is None else max(0.0, again - self._clock())
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            self.add(key, max(min(self._delay(key), requested), after or 0.0))
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add(key, requested)
        if after is not None:
            self.add(key, after)

    def _delay(self, key: Key) -> float:
        return delay(self._failures[key], _FIRST, _LONGEST) * (0.5 + self._jitter() / 2)

    def forget(self, key: Key) -> None:
        """Drops the failures of a key that no longer exists."""
        self._failures.pop(key, None)

    @property
    def waiting(self) -> int:
        """Keys that wait."""
        return len(self._due)

    @property
    def overdue(self) -> float:
        """Seconds by which the next key is late; negative before it is due; 0 where none waits."""
        wait = self._until_due()
        return -wait if self._heap else 0.0

    @property
    def oldest(self) -> float:
        """Seconds that the key which is overdue longest has waited; 0 where none is due."""
        return max(0.0, self.overdue)


_QUEUE: Final = "queue"

_SILENCE: Final = 180.0  # seconds; a reconcile takes at most two thirds of it


class QueueProgress:
    """Beats while the queue makes progress: no key is due, or a reconcile ended since the last call.

    Workers may have died otherwise. Pools that wait for long are no reason to restart: the next process would have to
    reconcile all of them. An alert reports that (PlumagePoolsWait).
    """

    def __init__(self, queue: WorkQueue[Any], heartbeats: Heartbeats) -> None:
        self._queue = queue
        self._heartbeats = heartbeats
        self._ended = queue.finished
        heartbeats.expect(_QUEUE, _SILENCE)

    def beat(self) -> None:
        """Call it every few seconds."""
        if self._queue.finished != self._ended or self._queue.oldest == 0.0:
            self._heartbeats.beat(_QUEUE)
        self._ended = self._queue.finished
