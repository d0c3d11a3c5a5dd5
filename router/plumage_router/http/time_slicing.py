"""Runs long work on the event loop in slices, and serves small requests between two slices.

Work is a generator that yields between its slices. One work runs at a time, so the memory for parsing is needed once.

- Short slices follow each other for a millisecond. Then the loop serves what is ready, and goes on.
- After a long slice the loop is free for three times as long, within bounds. Reason: a request that waited meanwhile
  needs several turns of the loop, and each should not wait for another long slice.

The order of works:
- Between tenants: each gets the same share of bytes (self-clocked fair queueing; Golestani, INFOCOM 1994). The tenant
  whose next work would end first at an equal share is next.
- Within a tenant: smaller works first. At most N bytes of later work run before it. N is its own size, and what the
  memory for bodies holds at once.

So no stream of small works starves a large one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Generator
from traceback import clear_frames
from typing import Any, Final, TypeVar

from plumage_router.clock import monotonic

__all__ = ["LARGE", "SlicedWork", "Steps", "TimeSlicer", "pause_after", "run_now"]

LARGE: Final = 65_536  # bytes; a longer body is read in slices
TURN: Final = 0.001  # seconds of slices in one turn of the loop; a slice that takes longer ends its turn
LONG: Final = 0.002  # seconds of slices after which the loop is free for a while
PAUSE: Final = 3.0  # times as long as these slices took
MOST_PAUSE: Final = 0.1  # seconds

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]


def pause_after(taken: float) -> float:
    """Returns the seconds that the loop is free after slices of `taken` seconds. 0: for one turn."""
    return 0.0 if taken < LONG else min(MOST_PAUSE, PAUSE * taken)


def run_now(steps: Steps[_Result]) -> _Result:
    """Runs all slices at once; for short work."""
    result: list[_Result] = []
    for _ in _into(result, steps):
        pass
    return result[0]


def _into(result: list[_Result], steps: Steps[_Result]) -> Steps[None]:
    """Appends the result of the steps. To catch the exception that carries it takes four times as long."""
    result.append((yield from steps))


class SlicedWork:
    """Work that runs in slices, or waits to."""

    __slots__ = ("cancelled", "done", "result", "size", "steps")

    def __init__(self, size: int, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.size = size
        self.result: list[Any] = []
        self.steps = _into(self.result, steps)
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        """Stops the work; `done` is not called."""
        self.cancelled = True
        self.steps.close()


class _TenantQueue:
    """The waiting works of one tenant; never empty in `TimeSlicer._queues`.

    `share`: the bytes that the tenant has had, on the clock that all tenants share.
    """

    __slots__ = ("_heap", "_number", "share")

    def __init__(self, share: int) -> None:
        self.share = share
        self._heap: list[tuple[int, int, SlicedWork]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def end(self) -> int:
        """`share` after the next work."""
        return self.share + self._heap[0][2].size

    def add(self, work: SlicedWork) -> None:
        heapq.heappush(self._heap, (self.share + work.size, self._number, work))
        self._number += 1

    def take(self) -> SlicedWork:
        return heapq.heappop(self._heap)[2]


class TimeSlicer:
    """All long work of one process. alone: each slice has a turn of the loop for itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, alone: bool = False) -> None:
        self._loop = loop
        self._alone = alone
        self._queues: dict[str, _TenantQueue] = {}  # by tenant, in the order of their first waiting work
        self._share = 0  # of the tenant whose work ran last
        self._current: SlicedWork | None = None
        self._scheduled = False

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + (self._current is not None)

    def add(
        self,
        size: int,
        steps: Steps[_Result],
        done: Callable[[_Result | None, Exception | None], None],
        *,
        tenant: str = "",
    ) -> SlicedWork:
        """Starts the work with the next turn of the loop, or when its turn comes among others.

        size: bytes of the body, as a measure of the work. tenant: who sent it.
        done: gets the generator's result or its exception; never after `cancel`.
        """
        work = SlicedWork(size, steps, done)
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = _TenantQueue(self._share)
        queue.add(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)
        return work

    def _run(self) -> None:
        """Runs the slices of one turn, and schedules the next turn while work is left, also if a `done` raised."""
        began, taken = monotonic(), 0.0
        try:
            while (work := self._next()) is not None:
                self._run_slice(work)
                taken = monotonic() - began
                if self._alone or taken >= TURN:
                    break
        finally:
            self._scheduled = self._current is not None or bool(self._queues)
            if self._scheduled:
                self._loop.call_later(pause_after(taken), self._run)

    def _next(self) -> SlicedWork | None:
        if self._current is not None and self._current.cancelled:
            self._current = None
        while self._current is None and self._queues:
            work = self._take()
            self._current = None if work.cancelled else work
        return self._current

    def _take(self) -> SlicedWork:
        """Takes a work from the queue of the tenant whose turn it is. Cancelled work costs its tenant nothing."""
        tenant, queue = min(self._queues.items(), key=lambda entry: entry[1].end)
        work = queue.take()
        if not work.cancelled:
            queue.share += work.size
            self._share = max(self._share, queue.share)
        if not queue:
            del self._queues[tenant]
        return work

    def _run_slice(self, work: SlicedWork) -> None:
        try:
            for _ in work.steps:
                return
        except Exception as error:
            self._current = None
            try:
                work.done(None, error)
            finally:
                clear_frames(error.__traceback__)  # they hold the body until the next garbage collection
        else:
            self._current = None
            work.done(work.result[0], None)
