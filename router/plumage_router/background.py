"""Tasks beside the requests, which run for ever: one that fails is counted, told of and begun again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from plumage.directory.tasks import Mistakes
from plumage_router.metrics import Metrics

__all__ = ["Background"]

RESTART = 1.0  # seconds until a task that failed is begun again


class Background:
    """`metrics`: where failures are counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs them from now on."""
        self._tasks += [asyncio.get_running_loop().create_task(self.forever(work)) for work in works]

    async def end(self) -> None:
        """Cancels all and waits for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Requests must not depend on a task: one that fails is told of once a kind and begun again."""
        mistakes = Mistakes(f"the router's background task {work.__qualname__}", foreseen=())
        while True:
            try:
                await work()
            except Exception as error:
                self._metrics.background_failures += 1
                mistakes.tell(error)
            await asyncio.sleep(RESTART)
