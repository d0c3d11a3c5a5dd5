"""What one router reports to the others of its work, and what it knows of theirs, without a server or a clock.

`make` returns the next message and `take` reads one of another router; `work_share` carries them. A message has for
each replica the seconds of work in flight, and the policy's account of its requests (`plumage.routing.others`): those
that changed, and all of them once a second. It also has the chains that were just routed.

The reader's policy gets the accounts at once. A policy that takes none has the seconds instead (`foreign`), as has an
account that an older router did not send. The chains are held pending in the reader's mirror. So a burst on a new
prefix stays together across routers. Without news, work drains by one second per second. It is dropped after `SILENCE`,
like an account. So a dead router leaves nothing behind.

Messages name replicas by id, this module by slot. Unknown replicas are ignored. `now` is monotonic seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from plumage.directory.schema import SchemaError
from plumage.routing.others import Account, Cooperative

__all__ = ["PERIOD", "SILENCE", "PendingMirror", "WorkExchange"]

PERIOD = 0.05  # seconds between messages
ALL_EVERY = 1.0  # seconds between messages with all of our work
SILENCE = 3.0  # seconds without news until a router's work is dropped
CHAINS_AT_ONCE = 64  # most chains per message …
CHUNKS_A_CHAIN = 256  # … and most chunks of each: 64 KB of prompt
LONGEST_HOLD = 60.0  # most seconds that a chain of another router is pending here
ROUTERS = 256  # most other routers whose work is added


class PendingMirror(Protocol):
    """The part of a mirror that gets the chains of other routers."""

    def hold_pending(self, chain: Sequence[int], slot: int, now: float, ttl: float) -> None: ...


class WorkMessage(msgspec.Struct, array_like=True):
    """One router's message. work: replica → seconds. chains: (replica, packed chunks, seconds to live). accounts:
    replica → account; older routers send none."""

    router: str
    work: dict[str, float]
    chains: list[tuple[str, bytes, float]]
    accounts: dict[str, Account] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkMessage).decode


class WorkExchange:
    """One router's part.

    name: of the router, unique. mirror: gets the pending chains of other routers.
    work: returns our seconds of work in flight, by slot. policy: returns the policy in use."""

    def __init__(
        self,
        name: str,
        mirror: PendingMirror,
        work: Callable[[], Mapping[int, float]],
        policy: Callable[[], object],
    ) -> None:
        self.name = name
        self._mirror = mirror
        self._work = work
        self._policy = policy
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._last_sent: dict[str, float] = {}
        self._last_accounts: dict[str, Account] = {}
        self._all_sent_at = 0.0
        self._chains: list[tuple[int, Sequence[int], float]] = []
        self._heard: dict[str, dict[int, tuple[float, float]]] = {}  # router → slot → (seconds, when heard)
        self._accounts: dict[tuple[str, int], float] = {}  # (router, slot) → when heard

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
        for key in [key for key in self._accounts if key[1] == slot]:
            del self._accounts[key]

    def sent(self, chain: Sequence[int], slot: int, ttl: float) -> None:
        """Announce that we routed this chain to this slot. ttl: seconds that it is pending."""
        if len(self._chains) < CHAINS_AT_ONCE:
            self._chains.append((slot, chain, ttl))

    def foreign(self, now: float) -> dict[int, float]:
        """Seconds of work that other routers have in flight, by slot, without those that the policy counts itself."""
        total: dict[int, float] = {}
        for router, heard in self._heard.items():
            for slot, (seconds, at) in heard.items():
                left = seconds - (now - at)
                if left > 0.0 and now - at <= SILENCE and (router, slot) not in self._accounts:
                    total[slot] = total.get(slot, 0.0) + left
        return total

    # Messages

    def make(self, now: float) -> bytes | None:
        """The next message; None without news."""
        current = {self._names[slot]: round(s, 4) for slot, s in self._work().items() if slot in self._names}
        accounts = self._own_accounts()
        if now - self._all_sent_at >= ALL_EVERY:
            self._all_sent_at = now
            self._last_accounts = {}
            news = dict(current)
        else:
            news = {name: seconds for name, seconds in current.items() if self._last_sent.get(name) != seconds}
        news.update(dict.fromkeys(self._last_sent.keys() - current.keys(), 0.0))
        changed = {name: one for name, one in accounts.items() if self._last_accounts.get(name) != one}
        self._last_sent, self._last_accounts = current, accounts
        chains, self._chains = self._chains, []
        if not news and not chains and not changed:
            return None
        packed = [(self._names[slot], _pack(chain), ttl) for slot, chain, ttl in chains if slot in self._names]
        return _encode(WorkMessage(self.name, news, packed, changed))

    def _own_accounts(self) -> dict[str, Account]:
        policy = self._policy()
        if not isinstance(policy, Cooperative):
            return {}
        found = ((name, policy.account(slot)) for slot, name in self._names.items())
        return {name: account for name, account in found if account is not None}

    def take(self, encoded: bytes, now: float) -> None:
        """Read a message. One of our own is ignored. SchemaError if it can't be read."""
        try:
            message = _decode(encoded)
            chains = [(name, _unpack(packed), ttl) for name, packed, ttl in message.chains]
        except (msgspec.MsgspecError, struct.error) as error:
            raise SchemaError(f"invalid work message: {error}") from error
        if message.router != self.name:
            self.drop_silent(now)
            self._add_work(message, now)
            self._hear(message, now)
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

    def _hear(self, message: WorkMessage, now: float) -> None:
        policy = self._policy()
        if not isinstance(policy, Cooperative):
            return
        for name, account in message.accounts.items():
            slot = self._slots.get(name)
            if slot is not None and message.router in self._heard:
                self._accounts[message.router, slot] = now
                policy.hear(message.router, slot, account, now)

    def drop_silent(self, now: float) -> None:
        """Drop what silent routers reported. Call it often."""
        for router, heard in list(self._heard.items()):
            if all(now - at > SILENCE for _, at in heard.values()):
                del self._heard[router]
        policy = self._policy()
        for router, slot in [key for key, at in self._accounts.items() if now - at > SILENCE]:
            del self._accounts[router, slot]
            if isinstance(policy, Cooperative):
                policy.hear(router, slot, None, now)


def _pack(chain: Sequence[int]) -> bytes:
    kept = chain[:CHUNKS_A_CHAIN]
    return struct.pack(f"<{len(kept)}Q", *kept)


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)
