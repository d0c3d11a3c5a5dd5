"""Tasks that go on whatever happens, and ending them for sure.

`forever` is the loop of everything here that talks to a server beside the requests: its death would show days later as
knowledge that has grown old. So a server that is away is asked again later, and a mistake of ours ends nothing either.

Before Python 3.12 `asyncio.wait_for` may return a result that came at the same moment as a cancellation and so swallow
it; redis-py sends every command through it. A task that talks to the server must be cancelled until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from plumage.directory.backoff import Backoff
from plumage.directory.connection import AWAY

__all__ = ["Mistakes", "end", "forever"]

log = logging.getLogger(__name__)

AGAIN = 0.5  # seconds until a task that goes on is cancelled once more
KINDS = 32  # kinds of errors that one task tells of


async def forever(
    turn: Callable[[], Awaitable[object]],
    what: str,
    *,
    backoff: Backoff,
    failed: Callable[[Exception], object],
    done: Callable[[], bool] = lambda: False,
) -> None:
    """One turn after the other until cancelled or `done`. `failed` is told of each error, to count it and to say that
    the server is away; the next turn comes after `backoff`. An error that no server causes is a mistake of ours and
    logged as well, by the name of `what`, once of each kind."""
    mistakes = Mistakes(what)
    while not done():
        try:
            await turn()
        except Exception as error:
            mistakes.tell(error)
            failed(error)
            await asyncio.sleep(backoff.next())
        else:
            backoff.reset()


class Mistakes:
    """Tells the log of errors of ours, once of each kind: its type and the line that raised it. foreseen: errors that
    are no mistake, such as those of a server that is away."""

    def __init__(self, what: str, foreseen: tuple[type[Exception], ...] = AWAY) -> None:
        self._what, self._foreseen = what, foreseen
        self._kinds: set[str] = set()

    def tell(self, error: Exception) -> None:
        """Say what it is, unless it was foreseen or said before."""
        kind = _kind(error)
        if not isinstance(error, self._foreseen) and kind not in self._kinds and len(self._kinds) < KINDS:
            self._kinds.add(kind)
            log.error("%s: unforeseen error, going on; it is told once of each kind", self._what, exc_info=error)


def _kind(error: Exception) -> str:
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = f"{frame.f_code.co_filename}:{line}"
    return f"{type(error).__qualname__} at {place}"


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
