"""Tasks that run forever beside the requests. One that fails is counted, logged and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from plumage.directory.client.tasks import UnexpectedErrors
from plumage_router.metrics import Metrics

__all__ = ["Background"]

RESTART = 1.0  # seconds until a failed task restarts


class Background:
    """metrics: counts the failures."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts the tasks."""
        self._tasks += [asyncio.get_running_loop().create_task(self.forever(work)) for work in works]

    async def stop(self) -> None:
        """Cancels all tasks and waits for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task again and again. Each kind of failure is logged once."""
        mistakes = UnexpectedErrors(f"the router's background task {work.__qualname__}", foreseen=())
        while True:
            try:
                await work()
            except Exception as error:
                self._metrics.background_failures += 1
                mistakes.log_once(error)
            await asyncio.sleep(RESTART)
