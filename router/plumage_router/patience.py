"""Waiting for a replica without blaming it for what held up this process.

After a loop was busy for seconds its timers are looked at before its sockets are: a plain timeout would take an answer
that is there already for one that never came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

__all__ = ["within"]

T = TypeVar("T")

SLICES: Final = 10


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; TimeoutError when it takes longer. Of the time that the loop was busy with something else no
    more than a tenth of `seconds` counts at a stretch."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieved)
    try:
        for _ in range(SLICES):
            await asyncio.wait((task,), timeout=seconds / SLICES)
            if task.done():
                return task.result()
        task.cancel()
        await asyncio.wait((task,))
        if task.cancelled():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()


def _retrieved(task: asyncio.Task[Any]) -> None:
    """How it ended concerns nobody once whoever waited was cancelled; asyncio would log it as forgotten."""
    if not task.cancelled():
        task.exception()
