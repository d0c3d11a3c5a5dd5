"""State that the routers of one pool share, so that several decide like one.

It is work in flight, pending owners and learned estimators. `work_exchange` makes and reads the messages. This module
carries them over the directory's server. It does so at once after a request was routed or had its first token, but at
most every 50 ms.

The learned state of each router lies in a hash (`learned`), which is exchanged every few seconds.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from plumage.backoff import Backoff
from plumage.directory.client.tasks import end, run_forever
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.schema import (
    ESTIMATORS_TTL,
    SCHEMA_VERSION,
    WORK_TTL,
    PoolKeys,
    check_version,
)  # fmt: skip
from plumage.directory.sharing.shared_hash import SharedHash
from plumage.directory.sharing.shared_stream import Fields, SharedStream
from plumage.directory.sharing.work_exchange import PERIOD, WorkExchange

__all__ = ["EXCHANGE_EVERY", "WorkShare"]

LONGEST = 2000  # most messages in the stream: a few seconds of many routers
EXCHANGE_EVERY = 5.0  # seconds between exchanges of learned state


class WorkShare:
    """One router's part.

    router: its name in logs; a random suffix makes it unique. mirror: gets the pending chains of other routers.
    work: returns our seconds of work in flight, by slot. policies: returns the policy in use, and those beside it."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        router: str,
        mirror: Mirror,
        work: Callable[[], Mapping[int, float]],
        policies: Callable[[], Sequence[object]],
    ) -> None:
        keys = PoolKeys(pool)
        self.name = f"{router}.{secrets.token_hex(4)}"
        self.exchange = WorkExchange(self.name, mirror, work, policies)
        self._exchanging: asyncio.Task[None] | None = None
        self._rng = random.Random()
        self.stream = SharedStream(
            url, keys.work, make=self._make, take=self._take,
            period=PERIOD, longest=LONGEST, lifetime=WORK_TTL, rng=self._rng,
        )  # fmt: skip
        self.learned = SharedHash(self.stream.client, keys.estimators, self.name, lifetime=ESTIMATORS_TTL)

    # Calls of the router

    def set_replicas(self, slots: Mapping[str, int]) -> None:
        """Set the replicas: id → slot."""
        self.exchange.set_replicas(slots)

    def sent(self, chain: Sequence[int], slot: int, ttl: float) -> None:
        """Announce that we routed this chain to this slot. ttl: seconds that it is pending."""
        self.exchange.sent(chain, slot, ttl)

    def foreign(self, now: float | None = None) -> dict[int, float]:
        """Seconds of work that other routers have in flight, by slot. now: of time.monotonic()."""
        return self.exchange.foreign(time.monotonic() if now is None else now)

    def changed(self) -> None:
        """A request was routed, or has its first token. The others should know soon."""
        self.stream.hurry()

    # The tasks

    def start(self) -> None:
        self.stream.start()
        self._exchanging = asyncio.create_task(self._exchange_learned(), name=f"directory exchange of {self.name}")

    async def close(self) -> None:
        if self._exchanging is not None:
            await end([self._exchanging])
            self._exchanging = None
        await self.stream.close()

    async def _exchange_learned(self) -> None:
        async def one() -> None:
            await self.learned.exchange()
            await asyncio.sleep(EXCHANGE_EVERY)

        what = f"directory exchange of {self.name}"
        await run_forever(one, what, backoff=Backoff(self._rng, longest=EXCHANGE_EVERY), failed=self._exchange_failed)

    def _exchange_failed(self, error: Exception) -> None:
        self.learned.counts["failures"] += 1

    # Messages

    def _make(self) -> Fields | None:
        message = self.exchange.make(time.monotonic())
        return None if message is None else {"v": SCHEMA_VERSION, "d": message}

    def _take(self, identifier: str, fields: Mapping[bytes, bytes]) -> None:
        check_version(fields.get(b"v"))
        self.exchange.take(fields.get(b"d", b""), time.monotonic())
