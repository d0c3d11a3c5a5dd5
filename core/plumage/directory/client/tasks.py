"""Background tasks that survive errors, and their cancellation.

`run_forever` is the loop of every task that talks to the directory server. If such a task ended, the router's or
agent's knowledge would age unnoticed. Therefore an unavailable server and an unexpected error both lead to a retry.

Before Python 3.12 `asyncio.wait_for` can swallow a cancellation: it returns a result that arrived at the same moment.
redis-py sends every command through it. `end` therefore cancels a task again until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from plumage.backoff import Backoff
from plumage.directory.client.connection import UNAVAILABLE

__all__ = ["UnexpectedErrors", "end", "run_forever"]

log = logging.getLogger(__name__)

AGAIN = 0.5  # seconds until a task that is still running is cancelled again
KINDS = 32  # most kinds of errors that one task logs


async def run_forever(
    turn: Callable[[], Awaitable[object]],
    what: str,
    *,
    backoff: Backoff,
    failed: Callable[[Exception], object],
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Run `turn` again and again until cancelled or `done`.

    failed: called with each error; it counts the error. The next turn starts after `backoff`.
    what: the task's name in the log. Unexpected errors are logged, each kind once."""
    mistakes = UnexpectedErrors(what)
    while not done():
        try:
            await turn()
        except Exception as error:
            mistakes.log_once(error)
            failed(error)
            await asyncio.sleep(backoff.next())
        else:
            backoff.reset()


class UnexpectedErrors:
    """Logs unexpected errors, each kind once. A kind is the error's type and the line that raised it.

    foreseen: expected errors, which are not logged. The default is an unavailable server."""

    def __init__(self, what: str, foreseen: tuple[type[Exception], ...] = UNAVAILABLE) -> None:
        self._what, self._foreseen = what, foreseen
        self._kinds: set[str] = set()

    def log_once(self, error: Exception) -> None:
        """Log the error, unless it was foreseen or its kind was logged before."""
        kind = _kind(error)
        if not isinstance(error, self._foreseen) and kind not in self._kinds and len(self._kinds) < KINDS:
            self._kinds.add(kind)
            log.error("%s: unexpected error; the task continues. Each kind is logged once", self._what, exc_info=error)


def _kind(error: Exception) -> str:
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = f"{frame.f_code.co_filename}:{line}"
    return f"{type(error).__qualname__} at {place}"


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until all have ended. Their errors are ignored."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not warn about it
