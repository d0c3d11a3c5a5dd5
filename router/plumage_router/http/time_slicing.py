"""Runs long work on the event loop in slices, and serves small requests between two slices.

Work is a generator that yields between its slices. One work runs at a time, the smallest first, so the memory for
parsing is needed once. After each slice the loop is free for as long as the slice took, within bounds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from plumage_router.clock import monotonic

__all__ = ["LARGE", "SlicedWork", "Steps", "TimeSlicer", "run_now"]

LARGE: Final = 65_536  # bytes; a longer body is read in slices
LEAST_PAUSE: Final = 0.001  # seconds that the loop is free after a slice
MOST_PAUSE: Final = 0.02

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]


def run_now(steps: Steps[_Result]) -> _Result:
    """Runs all slices at once; for short work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


class SlicedWork:
    """Work that runs in slices, or waits to."""

    __slots__ = ("cancelled", "done", "steps")

    def __init__(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.steps = steps
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        """Stops the work; `done` is not called."""
        self.cancelled = True
        self.steps.close()


class TimeSlicer:
    """All long work of one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, int, SlicedWork]] = []
        self._added = 0
        self._current: SlicedWork | None = None
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._waiting) + (self._current is not None)

    def add(
        self, size: int, steps: Steps[_Result], done: Callable[[_Result | None, Exception | None], None]
    ) -> SlicedWork:
        """Starts the work with the next turn of the loop, or after works with a smaller `size`.

        done: gets the generator's result or its exception; never after `cancel`.
        """
        work = SlicedWork(steps, done)
        self._added += 1
        heapq.heappush(self._waiting, (size, self._added, work))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)
        return work

    def _run(self) -> None:
        self._scheduled = False
        work = self._next()
        if work is None:
            return
        began = monotonic()
        self._run_slice(work)
        pause = min(MOST_PAUSE, max(LEAST_PAUSE, monotonic() - began))
        if self._current is not None or self._waiting:
            self._scheduled = True
            self._loop.call_later(pause, self._run)

    def _next(self) -> SlicedWork | None:
        if self._current is not None and self._current.cancelled:
            self._current = None
        while self._current is None and self._waiting:
            work = heapq.heappop(self._waiting)[2]
            self._current = None if work.cancelled else work
        return self._current

    def _run_slice(self, work: SlicedWork) -> None:
        try:
            next(work.steps)
        except StopIteration as end:
            self._current = None
            work.done(end.value, None)
        except Exception as error:
            self._current = None
            work.done(None, error)
