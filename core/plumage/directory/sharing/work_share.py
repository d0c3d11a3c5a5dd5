"""State that the routers of one pool share, so that several decide like one.

It is work in flight, pending owners and learned estimators.

Every 50 ms a router sends the seconds of work that it has in flight on each replica: those that changed, and all of
them once a second. It also sends the chains that it has just routed. Other routers add this work to their own
(`foreign`) and hold the chains pending in their mirror. So a burst on a new prefix stays together across routers.
Without news, work drains by one second per second and is dropped after `SILENCE`. So a dead router leaves nothing
behind.

The learned state of each router lies in a hash (`learned`), which is exchanged every few seconds. Messages name
replicas by id, this module by slot. Unknown replicas are ignored.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import struct
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from plumage.backoff import Backoff
from plumage.directory.client.tasks import end, run_forever
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.schema import (
    ESTIMATORS_TTL,
    SCHEMA_VERSION,
    WORK_TTL,
    PoolKeys,
    SchemaError,
    check_version,
)  # fmt: skip
from plumage.directory.sharing.shared_hash import SharedHash
from plumage.directory.sharing.shared_stream import Fields, SharedStream

__all__ = ["WorkShare"]

PERIOD = 0.05
ALL_EVERY = 1.0  # seconds between messages with all of our work
SILENCE = 3.0  # seconds without news until a router's work is dropped
LONGEST = 2000  # most messages in the stream: a few seconds of many routers
CHAINS_AT_ONCE = 64  # most chains per message …
CHUNKS_A_CHAIN = 256  # … and most chunks of each: 64 KB of prompt
LONGEST_HOLD = 60.0  # most seconds that a chain of another router is pending here
EXCHANGE_EVERY = 5.0  # seconds between exchanges of learned state
ROUTERS = 256  # most other routers whose work is added


class WorkMessage(msgspec.Struct, array_like=True):
    """One router's message. work: replica → seconds. chains: (replica, packed chunks, seconds to live)."""

    router: str
    work: dict[str, float]
    chains: list[tuple[str, bytes, float]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkMessage).decode


class WorkShare:
    """One router's part.

    router: its name in logs; a random suffix makes it unique. mirror: gets the pending chains of other routers.
    work: returns our seconds of work in flight, by slot."""

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        router: str,
        mirror: Mirror,
        work: Callable[[], Mapping[int, float]],
        rng: random.Random | None = None,
    ) -> None:
        self._keys = PoolKeys(pool)
        self.name = f"{router}.{secrets.token_hex(4)}"
        self._mirror = mirror
        self._work = work
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._last_sent: dict[str, float] = {}
        self._all_sent_at = 0.0
        self._chains: list[tuple[int, Sequence[int], float]] = []
        self._heard: dict[str, dict[int, tuple[float, float]]] = {}  # router → slot → (seconds, when heard)
        self._exchanging: asyncio.Task[None] | None = None
        self._rng = rng or random.Random()
        self.stream = SharedStream(
            url, self._keys.work, make=self._make, take=self._take,
            period=PERIOD, longest=LONGEST, lifetime=WORK_TTL, rng=rng,
        )  # fmt: skip
        self.learned = SharedHash(self.stream.client, self._keys.estimators, self.name, lifetime=ESTIMATORS_TTL)

    # Calls of the router

    def set_replicas(self, slots: Mapping[str, int]) -> None:
        """Set the replicas: id → slot."""
        for slot in set(self._names) - set(slots.values()):
            self.forget(slot)
        self._slots = dict(slots)
        self._names = {slot: name for name, slot in slots.items()}

    def forget(self, slot: int) -> None:
        """Drop the work of other routers on this slot."""
        for heard in self._heard.values():
            heard.pop(slot, None)

    def sent(self, chain: Sequence[int], slot: int, ttl: float) -> None:
        """Announce that we routed this chain to this slot. ttl: seconds that it is pending."""
        if len(self._chains) < CHAINS_AT_ONCE:
            self._chains.append((slot, chain, ttl))

    def foreign(self, now: float | None = None) -> dict[int, float]:
        """Seconds of work that other routers have in flight, by slot. now: of time.monotonic()."""
        now = time.monotonic() if now is None else now
        total: dict[int, float] = {}
        for heard in self._heard.values():
            for slot, (seconds, at) in heard.items():
                left = seconds - (now - at)
                if left > 0.0 and now - at <= SILENCE:
                    total[slot] = total.get(slot, 0.0) + left
        return total

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
        now = time.monotonic()
        current = {self._names[slot]: round(s, 4) for slot, s in self._work().items() if slot in self._names}
        if now - self._all_sent_at >= ALL_EVERY:
            self._all_sent_at = now
            news = dict(current)
        else:
            news = {name: seconds for name, seconds in current.items() if self._last_sent.get(name) != seconds}
        news.update(dict.fromkeys(self._last_sent.keys() - current.keys(), 0.0))
        self._last_sent = current
        chains, self._chains = self._chains, []
        if not news and not chains:
            return None
        packed = [(self._names[slot], _pack(chain), ttl) for slot, chain, ttl in chains if slot in self._names]
        return {"v": SCHEMA_VERSION, "d": _encode(WorkMessage(self.name, news, packed))}

    def _take(self, identifier: str, fields: Mapping[bytes, bytes]) -> None:
        check_version(fields.get(b"v"))
        try:
            message = _decode(fields.get(b"d", b""))
            chains = [(name, _unpack(packed), ttl) for name, packed, ttl in message.chains]
        except (msgspec.MsgspecError, struct.error) as error:
            raise SchemaError(f"invalid work message: {error}") from error
        if message.router != self.name:
            now = time.monotonic()
            self._drop_silent(now)
            self._add_work(message, now)
            for name, chain, ttl in chains:
                if name in self._slots:
                    self._mirror.hold_pending(chain, self._slots[name], now, min(ttl, LONGEST_HOLD))

    def _add_work(self, message: WorkMessage, now: float) -> None:
        heard = self._heard.get(message.router)
        if heard is None:
            if len(self._heard) >= ROUTERS:
                return
            heard = self._heard[message.router] = {}
        for name, seconds in message.work.items():
            if name in self._slots:
                heard[self._slots[name]] = (seconds, now)

    def _drop_silent(self, now: float) -> None:
        for router, heard in list(self._heard.items()):
            if all(now - at > SILENCE for _, at in heard.values()):
                del self._heard[router]


def _pack(chain: Sequence[int]) -> bytes:
    kept = chain[:CHUNKS_A_CHAIN]
    return struct.pack(f"<{len(kept)}Q", *kept)


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)
