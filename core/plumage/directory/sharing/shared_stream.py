"""A stream that all participants write and read: routers and agents of a pool share state through it.

Every `period` seconds `make()` may return fields to send. `hurry` asks for it at once, unless a message was sent in
the last period. So the first of several news goes out without a wait, and there are no more messages than periods.
Entries go to `take(identifier, fields)` in the order of the stream, at most one read per `pace` seconds. Without
`make` nothing is sent, without `take` nothing is read. Reading begins at the end of the stream, unless `after` names an
earlier entry. The stream has a bound and a time to live. Messages may be lost, when a server restarts or a reader is
away for long. Therefore each message must be complete by itself or dispensable. No caller waits for the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from plumage.backoff import Backoff
from plumage.directory.client.connection import close, connect, error_text, redacted
from plumage.directory.client.tasks import end, run_forever
from plumage.directory.schema import NewerSchemaError, SchemaError

__all__ = ["Fields", "SharedStream"]

log = logging.getLogger(__name__)

Fields = dict[Any, Any]

BLOCK_MS = 3000  # below the client's timeout
ENTRIES_AT_ONCE = 500
PACE = 0.01  # seconds between reads


class SharedStream:
    """One participant.

    make, take: see above. period, pace: seconds. longest: most entries of the stream. lifetime: its time to live in
    seconds. counts: sent, read, newer_schema, malformed, failures. degraded: the last command failed.
    after: id of the last entry read."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        make: Callable[[], Fields | None] | None,
        take: Callable[[str, Mapping[bytes, bytes]], None] | None,
        period: float,
        pace: float = PACE,
        longest: int,
        lifetime: int,
        rng: random.Random | None = None,
    ) -> None:
        self.client = connect(url)
        self.counts: Counter[str] = Counter()
        self.degraded = True
        self.after = "$"
        self._key = key
        self._shown = redacted(url)
        self._make, self._take = make, take
        self._period, self._pace, self._longest, self._lifetime = period, pace, longest, lifetime
        self._rng = rng or random.Random()
        self._hurry = asyncio.Event()
        self._last = -math.inf
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self._make is not None:
            self._spawn("send", self._send)
        if self._take is not None:
            self._spawn("read", self._read)

    def hurry(self) -> None:
        """There is something to send."""
        self._hurry.set()

    def _spawn(self, name: str, turn: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(turn), name=f"directory {name} {self._key}"))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end(tasks)
        await close(self.client)

    async def _repeat(self, turn: Callable[[], Awaitable[None]]) -> None:
        async def one() -> None:
            await turn()
            self.degraded = False

        what = f"directory {self._shown}: {self._key}"
        await run_forever(one, what, backoff=Backoff(self._rng), failed=self.failed)

    def failed(self, error: BaseException) -> None:
        """Counts a failed command, and logs the first in a row."""
        self.counts["failures"] += 1
        if not self.degraded or self.counts["failures"] == 1:
            log.warning("directory %s: %s is not shared for now: %s", self._shown, self._key, error_text(error))
        self.degraded = True

    async def _send(self) -> None:
        assert self._make is not None, "nothing to send"
        self._hurry.clear()
        started = time.monotonic()
        fields = self._make()
        if fields is not None:
            pipe = self.client.pipeline(transaction=False)
            pipe.xadd(self._key, fields, maxlen=self._longest, approximate=True)
            pipe.expire(self._key, self._lifetime)
            self._last = started
            await pipe.execute()
            self.counts["sent"] += 1
        await self._pause(started)

    async def _pause(self, started: float) -> None:
        """Waits until a period after the last message or hurry, then for news until a period after `started`."""
        now = time.monotonic()
        await asyncio.sleep(max(0.0, self._last + self._period - now))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, started + self._period - time.monotonic())):
                await self._hurry.wait()
                self._last = time.monotonic()  # also if `make` then has nothing: one call a period

    async def _read(self) -> None:
        if self.after == "$":
            self.after = await self._last_id()
        got: Any = await self.client.xread({self._key: self.after}, count=ENTRIES_AT_ONCE, block=BLOCK_MS)
        for _, entries in got or []:
            for identifier, fields in entries:
                self.after = identifier.decode()
                self._take_one(self.after, fields)
        await asyncio.sleep(self._pace)

    async def _last_id(self) -> str:
        """The last entry's id. `$` would name the end of each read again, and lose entries between two reads."""
        last: Any = await self.client.xrevrange(self._key, count=1)
        return str(last[0][0].decode()) if last else "0-0"

    def _take_one(self, identifier: str, fields: Mapping[bytes, bytes]) -> None:
        assert self._take is not None, "nothing to read for"
        try:
            self._take(identifier, fields)
        except NewerSchemaError:
            self.counts["newer_schema"] += 1
        except SchemaError as error:
            self.counts["malformed"] += 1
            log.warning("directory %s: an entry of %s can't be read: %s", self._shown, self._key, error)
        else:
            self.counts["read"] += 1
