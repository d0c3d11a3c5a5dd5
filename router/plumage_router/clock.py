"""The router's clocks, and a timeout that does not count the time in which this process was busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

__all__ = ["fair_call", "fair_timeout", "monotonic", "wall"]

T = TypeVar("T")

monotonic = time.monotonic
"""Seconds; for every duration and deadline. The mirror uses the same clock."""
wall = time.time
"""Seconds since the epoch; only for times that people read."""

_SLICES: Final = 10


async def fair_timeout(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns what `work` returns; raises TimeoutError when it takes longer than `seconds`.

    After the event loop was busy for seconds, it checks its timers before its sockets. A plain timeout would then
    discard an answer that has arrived already. So the time is split into slices, and a busy period counts as one slice.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve_exception)
    try:
        for _ in range(_SLICES):
            await asyncio.wait((task,), timeout=seconds / _SLICES)
            if task.done():
                return task.result()
        task.cancel()
        await asyncio.wait((task,))
        if task.cancelled():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()


async def fair_call(seconds: float, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`fair_timeout` of a coroutine that is made when the task runs: a task that is cancelled before leaves none."""
    return await fair_timeout(seconds, begin())


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Nobody needs the result once the waiting caller was cancelled; asyncio would log it as never retrieved."""
    if not task.cancelled():
        task.exception()
