"""What the routers of one pool tell one another, so that several decide like one: work in flight, pending owners and
what they have learned.

Contract: every 50 ms a router sends the seconds of work it has in flight on each replica, as far as they changed (all
of them once a second), and the chains it has just sent where. Others add that work to their own view (`foreign`) and
hold the chains pending in their mirror, so that a burst on a new prefix stays together across routers. Work drains one
second a second while nothing is heard and is forgotten after `SILENCE`, so a router that dies leaves nothing behind.

What a router has learned lies beside what the others have (`learned`), exchanged every few seconds.
Replicas are named by id on the wire and by slot here; what is said of an unknown replica is passed over.
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
WHOLE_EVERY = 1.0  # seconds between messages that tell all of our work
SILENCE = 3.0  # seconds until an unheard router's work is forgotten
LONGEST = 2000  # messages kept: a few seconds of many routers
CHAINS_AT_ONCE = 64  # pending owners told per message …
CHUNKS_A_CHAIN = 256  # … and as much of each: 64 KB of prompt
LONGEST_HOLD = 60.0  # seconds that another router's word may bind us
OFFERS_EVERY = 5.0
ROUTERS = 256  # more than this many are not replica_view


class WorkMessage(msgspec.Struct, array_like=True):
    """One router's message. work: replica → seconds. chains: (replica, packed chunks, seconds to live)."""

    router: str
    work: dict[str, float]
    chains: list[tuple[str, bytes, float]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkMessage).decode


class WorkShare:
    """One router's part. `work`: gives our seconds of work in flight by slot, now. `router`: a name for people; each
    process is told apart by itself."""

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
        self._told: dict[str, float] = {}
        self._whole_at = 0.0
        self._chains: list[tuple[int, Sequence[int], float]] = []
        self._heard: dict[str, dict[int, tuple[float, float]]] = {}  # router → slot → (seconds, when heard)
        self._offering: asyncio.Task[None] | None = None
        self._rng = rng or random.Random()
        self.exchange = SharedStream(
            url, self._keys.work, make=self._make, take=self._take,
            period=PERIOD, longest=LONGEST, lifetime=WORK_TTL, rng=rng,
        )  # fmt: skip
        self.learned = SharedHash(self.exchange.client, self._keys.estimators, self.name, lifetime=ESTIMATORS_TTL)

    # What the router says and asks

    def set_replicas(self, slots: Mapping[str, int]) -> None:
        """The replicas by id, each with its slot."""
        for slot in set(self._names) - set(slots.values()):
            self.forget(slot)
        self._slots = dict(slots)
        self._names = {slot: name for name, slot in slots.items()}

    def forget(self, slot: int) -> None:
        for heard in self._heard.values():
            heard.pop(slot, None)

    def sent(self, chain: Sequence[int], slot: int, ttl: float) -> None:
        """We sent this chain to this slot and expect it to be held there for `ttl` seconds."""
        if len(self._chains) < CHAINS_AT_ONCE:
            self._chains.append((slot, chain, ttl))

    def foreign(self, now: float | None = None) -> dict[int, float]:
        """Seconds of work that other routers have in flight, by slot. `now`: on time.monotonic()."""
        now = time.monotonic() if now is None else now
        total: dict[int, float] = {}
        for heard in self._heard.values():
            for slot, (seconds, at) in heard.items():
                left = seconds - (now - at)
                if left > 0.0 and now - at <= SILENCE:
                    total[slot] = total.get(slot, 0.0) + left
        return total

    # Life

    def start(self) -> None:
        self.exchange.start()
        self._offering = asyncio.create_task(self._keep_offering(), name=f"directory offers of {self.name}")

    async def close(self) -> None:
        if self._offering is not None:
            await end([self._offering])
            self._offering = None
        await self.exchange.close()

    async def _keep_offering(self) -> None:
        async def one() -> None:
            await self.learned.exchange()
            await asyncio.sleep(OFFERS_EVERY)

        what = f"directory offers of {self.name}"
        await run_forever(one, what, backoff=Backoff(self._rng, longest=OFFERS_EVERY), failed=self._not_offered)

    def _not_offered(self, error: Exception) -> None:
        self.learned.counts["failures"] += 1

    # Messages

    def _make(self) -> Fields | None:
        now = time.monotonic()
        current = {self._names[slot]: round(s, 4) for slot, s in self._work().items() if slot in self._names}
        if now - self._whole_at >= WHOLE_EVERY:
            self._whole_at = now
            news = dict(current)
        else:
            news = {name: seconds for name, seconds in current.items() if self._told.get(name) != seconds}
        news.update(dict.fromkeys(self._told.keys() - current.keys(), 0.0))
        self._told = current
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
            raise SchemaError(f"a work message that is not one: {error}") from error
        if message.router != self.name:
            now = time.monotonic()
            self._forget_silent(now)
            self._hear(message, now)
            for name, chain, ttl in chains:
                if name in self._slots:
                    self._mirror.hold_pending(chain, self._slots[name], now, min(ttl, LONGEST_HOLD))

    def _hear(self, message: WorkMessage, now: float) -> None:
        heard = self._heard.get(message.router)
        if heard is None:
            if len(self._heard) >= ROUTERS:
                return
            heard = self._heard[message.router] = {}
        for name, seconds in message.work.items():
            if name in self._slots:
                heard[self._slots[name]] = (seconds, now)

    def _forget_silent(self, now: float) -> None:
        for router, heard in list(self._heard.items()):
            if all(now - at > SILENCE for _, at in heard.values()):
                del self._heard[router]


def _pack(chain: Sequence[int]) -> bytes:
    kept = chain[:CHUNKS_A_CHAIN]
    return struct.pack(f"<{len(kept)}Q", *kept)


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)
