"""Long work on the event loop, in pieces: small requests are served between two of them.

Contract: work is a generator that yields between its pieces. One work runs at a time, the smallest first, so memory for
reading is needed once. After each piece the loop is free for as long as the piece took, within bounds. `done` gets what
the generator returned, or what it raised; never after `cancel`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from plumage_router.clock import monotonic

__all__ = ["LARGE", "Pieces", "Steps", "Work", "at_once"]

LARGE: Final = 65_536  # bytes; a longer body is read in pieces
LEAST: Final = 0.001  # seconds that the loop is free after a piece
MOST: Final = 0.02

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]


def at_once(steps: Steps[_Result]) -> _Result:
    """Does all of it now; for short work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


class Work:
    """Something that is done in pieces, or waits to be."""

    __slots__ = ("cancelled", "done", "steps")

    def __init__(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.steps = steps
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        """Nobody wants the result."""
        self.cancelled = True
        self.steps.close()


class Pieces:
    """All long work of one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, int, Work]] = []
        self._added = 0
        self._current: Work | None = None
        self._planned = False

    def __len__(self) -> int:
        return len(self._waiting) + (self._current is not None)

    def add(self, size: int, steps: Steps[_Result], done: Callable[[_Result | None, Exception | None], None]) -> Work:
        """Begins with the next turn of the loop, or after works of a smaller `size`. done: the result, or the error."""
        work = Work(steps, done)
        self._added += 1
        heapq.heappush(self._waiting, (size, self._added, work))
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._run)
        return work

    def _run(self) -> None:
        self._planned = False
        work = self._next()
        if work is None:
            return
        began = monotonic()
        self._step(work)
        pause = min(MOST, max(LEAST, monotonic() - began))
        if self._current is not None or self._waiting:
            self._planned = True
            self._loop.call_later(pause, self._run)

    def _next(self) -> Work | None:
        if self._current is not None and self._current.cancelled:
            self._current = None
        while self._current is None and self._waiting:
            work = heapq.heappop(self._waiting)[2]
            self._current = None if work.cancelled else work
        return self._current

    def _step(self, work: Work) -> None:
        try:
            next(work.steps)
        except StopIteration as end:
            self._current = None
            work.done(end.value, None)
        except Exception as error:
            self._current = None
            work.done(None, error)
