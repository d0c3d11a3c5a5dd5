"""Ending a task for sure.

Before Python 3.12 `asyncio.wait_for` may return a result that came at the same moment as a cancellation and so swallow
it; redis-py sends every command through it. A task that talks to the server must be cancelled until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

__all__ = ["end"]

AGAIN = 0.5  # seconds until a task that goes on is cancelled once more


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until all have ended; how they ended is nobody's concern any more."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, so that it is not reported as forgotten
