"""Pool-wide hotness: some send what was used lately (routers, 0064), those who ask hold the same aged sum (agents).

Contract: `use` and `request` count; once a second the delta goes to the pool's stream, and all deltas, ours included,
are added to `view` in the stream's order, so that the views of all participants agree. Now and then one of them, whose
turn a short lock decides, stores its whole view with the id of the last delta in it: a newcomer starts from there, and
the stream before it is dropped. Who does not `follow` only sends and holds no view, who does not `tell` only listens.
Keys are chunks; neither text nor token ids can be had from them.
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
from plumage.directory.schema import HEAT_TTL, SCHEMA_VERSION, NewerSchemaError, PoolKeys, SchemaError, check_version
from plumage.directory.sharing.shared_stream import Fields, SharedStream
from plumage.errors import ConfigurationError
from plumage.hotness.fleet import DeltaCounter, FleetHotness, HotnessDelta

__all__ = ["HotnessShare"]

log = logging.getLogger(__name__)

PERIOD = 1.0
LONGEST = 5000  # deltas kept at most, should nobody store a view
VIEW_EVERY = 60  # seconds between stored views of a pool
STORED = struct.Struct("<B32s")  # version, id of the last delta in the view


class HotnessShare:
    """One participant. `capacity`: nodes of the view; `nodes`: most nodes in one delta; `period`: seconds a delta;
    `follow`: False for one that does not listen, `tell`: for one that does not send."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        capacity: int = 65_536,
        nodes: int = 4096,
        period: float = PERIOD,
        follow: bool = True,
        tell: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self._follow = follow
        self.view = FleetHotness(capacity)
        self._keys = PoolKeys(pool)
        self._counter = DeltaCounter(nodes)
        self.use = self._counter.use
        self.request = self._counter.request
        self._rng = rng or random.Random()
        self._task: asyncio.Task[None] | None = None
        self._loaded = False
        self.exchange = SharedStream(
            url, self._keys.heat, make=self._make if tell else None, take=self._take if follow else None,
            period=period, pace=period, longest=LONGEST, lifetime=HEAT_TTL, rng=rng,
        )  # fmt: skip

    def start(self) -> None:
        if not self._follow:
            self.exchange.start()
            return
        self._task = asyncio.create_task(self._run(), name=f"directory hotness of {self._keys.pool}")

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])
            self._task = None
        await self.exchange.close()

    async def _run(self) -> None:
        """Start from the stored view, then take part; store the view whenever it is our turn."""
        what = f"directory hotness of {self._keys.pool}"
        await run_forever(self._turn, what, backoff=Backoff(self._rng), failed=self.exchange.away)

    async def _turn(self) -> None:
        if not self._loaded:
            await self._load()
            self._loaded = True
            self.exchange.start()
        await asyncio.sleep(VIEW_EVERY * self._rng.uniform(0.5, 1.0))
        await self.store_view()

    async def _load(self) -> None:
        stored: Any = await self.exchange.client.get(self._keys.heat_view)
        self.exchange.after = "0-0"
        try:
            if stored is not None:
                self._start_from(stored)
        except NewerSchemaError:  # the stream alone must do
            self.exchange.counts["newer_schema"] += 1
        except SchemaError as error:
            self.exchange.counts["malformed"] += 1
            log.warning("the stored hotness of pool %s can't be read: %s", self._keys.pool, error)

    def _start_from(self, stored: bytes) -> None:
        check_version(stored[0] if stored else None)
        try:
            _, after = STORED.unpack_from(stored)
            self.view.load(stored[STORED.size :])
            self.exchange.after = after.rstrip(b"\0").decode()
        except (ConfigurationError, struct.error, UnicodeDecodeError) as error:
            raise SchemaError(str(error)) from error

    async def store_view(self) -> bool:
        """Store the view if nobody did lately; True when we did."""
        client, after = self.exchange.client, self.exchange.after
        mine = await client.set(self._keys.heat_turn, b"1", nx=True, ex=VIEW_EVERY)
        if not mine or after == "0-0":
            return False
        packed = STORED.pack(SCHEMA_VERSION, after.encode()) + self.view.to_bytes()
        pipe = self.exchange.client.pipeline(transaction=False)
        pipe.set(self._keys.heat_view, packed, ex=HEAT_TTL)
        pipe.xtrim(self._keys.heat, minid=after, approximate=False)
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
