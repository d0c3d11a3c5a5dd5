"""Pool-wide hotness: routers send the uses of prefixes (decision 0064), and agents hold the same aged sum.

`use` and `request` count. Once a second the delta is sent to the pool's stream. All deltas, with our own, are added
to `view` in the order of the stream, so the views of all participants agree. About once a minute the participant that
gets a short lock stores its view, with the id of the last delta in it. A new participant starts from the stored view,
and the stream before it is deleted. With `receive` False a participant holds no view; with `send` False it sends
nothing. Keys are chunks: no text and no token ids can be had from them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Mapping
from typing import Any

from plumage.backoff import Backoff
from plumage.directory.client.tasks import end, run_forever
from plumage.directory.schema import HOTNESS_TTL, SCHEMA_VERSION, NewerSchemaError, PoolKeys, SchemaError, check_version
from plumage.directory.sharing.shared_stream import Fields, SharedStream
from plumage.errors import ConfigurationError
from plumage.hotness.fleet import DeltaCounter, FleetHotness, HotnessDelta

__all__ = ["HotnessShare"]

log = logging.getLogger(__name__)

PERIOD = 1.0
MOST_NODES = 4096  # in one delta
LONGEST = 5000  # most deltas in the stream, if nobody stores a view
VIEW_EVERY = 60  # seconds between stored views of a pool
STORED = struct.Struct("<B32s")  # version, id of the last delta in the view


class HotnessShare:
    """One participant.

    capacity: most nodes of the view. period: seconds per delta.
    receive: read the deltas of others. send: write our own. view: the aged sum."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        capacity: int = 65_536,
        period: float = PERIOD,
        receive: bool = True,
        send: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self._receive = receive
        self.view = FleetHotness(capacity)
        self._keys = PoolKeys(pool)
        self._counter = DeltaCounter(MOST_NODES)
        self.use = self._counter.use
        self.request = self._counter.request
        self._rng = rng or random.Random()
        self._task: asyncio.Task[None] | None = None
        self._loaded = False
        self.stream = SharedStream(
            url, self._keys.hotness, make=self._make if send else None, take=self._take if receive else None,
            period=period, pace=period, longest=LONGEST, lifetime=HOTNESS_TTL, rng=rng,
        )  # fmt: skip

    def start(self) -> None:
        if not self._receive:
            self.stream.start()
            return
        self._task = asyncio.create_task(self._run(), name=f"directory hotness of {self._keys.pool}")

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])
            self._task = None
        await self.stream.close()

    async def _run(self) -> None:
        """Start from the stored view, then send and receive; store the view when we get the lock."""
        what = f"directory hotness of {self._keys.pool}"
        await run_forever(self._turn, what, backoff=Backoff(self._rng), failed=self.stream.failed)

    async def _turn(self) -> None:
        if not self._loaded:
            await self._load()
            self._loaded = True
            self.stream.start()
        await asyncio.sleep(VIEW_EVERY * self._rng.uniform(0.5, 1.0))
        await self.store_view()

    async def _load(self) -> None:
        stored: Any = await self.stream.client.get(self._keys.hotness_view)
        self.stream.after = "0-0"
        try:
            if stored is not None:
                self._start_from(stored)
        except NewerSchemaError:  # start with the stream alone
            self.stream.counts["newer_schema"] += 1
        except SchemaError as error:
            self.stream.counts["malformed"] += 1
            log.warning("the stored hotness of pool %s can't be read: %s", self._keys.pool, error)

    def _start_from(self, stored: bytes) -> None:
        check_version(stored[0] if stored else None)
        try:
            _, after = STORED.unpack_from(stored)
            self.view.load(stored[STORED.size :])
            self.stream.after = after.rstrip(b"\0").decode()
        except (ConfigurationError, struct.error, UnicodeDecodeError) as error:
            raise SchemaError(str(error)) from error

    async def store_view(self) -> bool:
        """Store the view, unless another participant did in the last minute. Returns whether it was stored."""
        client, after = self.stream.client, self.stream.after
        locked = await client.set(self._keys.hotness_lock, b"1", nx=True, ex=VIEW_EVERY)
        if not locked or after == "0-0":
            return False
        packed = STORED.pack(SCHEMA_VERSION, after.encode()) + self.view.to_bytes()
        pipe = client.pipeline(transaction=False)
        pipe.set(self._keys.hotness_view, packed, ex=HOTNESS_TTL)
        pipe.xtrim(self._keys.hotness, minid=after, approximate=False)
        await pipe.execute()
        return True

    def _make(self) -> Fields | None:
        delta = self._counter.take()
        if not delta.requests and not delta.uses:
            return None
        return {"v": SCHEMA_VERSION, "d": delta.to_bytes()}

    def _take(self, identifier: str, fields: Mapping[bytes, bytes]) -> None:
        check_version(fields.get(b"v"))
        try:
            self.view.add(HotnessDelta.from_bytes(fields.get(b"d", b"")))
        except ConfigurationError as error:
            raise SchemaError(str(error)) from error
