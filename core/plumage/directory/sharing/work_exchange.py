"""What one router reports to the others of its work, and what it knows of theirs, without a server or a clock.

`make` returns the next message and `take` reads one of another router; `work_share` carries them. A message has for
each replica the seconds of work in flight, and the policy's account of its requests (`plumage.routing.others`). It has
the replicas that changed, and all of them once a second. It also has the chains that were just routed.

The reader's policies get the accounts at once. What an account leaves out is seconds (`foreign`). So is all work where
the policy in use takes no accounts, or an older router sent none. The reader holds the chains pending in its mirror. So
a burst on a new prefix stays together across routers. Without news, seconds drain by one a second. All is dropped after
`SILENCE`. So a dead router leaves nothing behind.

Messages name replicas by id, this module by slot. Unknown replicas are ignored. `now` is monotonic seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from plumage.directory.schema import SchemaError
from plumage.routing.others import Account
from plumage.routing.shared import Cooperative

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
    work: returns our seconds of work in flight, by slot.
    policies: returns the policy in use, then those beside it."""

    def __init__(
        self,
        name: str,
        mirror: PendingMirror,
        work: Callable[[], Mapping[int, float]],
        policies: Callable[[], Sequence[object]],
    ) -> None:
        self.name = name
        self._mirror = mirror
        self._work = work
        self._policies = policies
        self._followed: Sequence[object] = ()
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._last_sent: dict[str, float] = {}
        self._last_accounts: dict[str, Account] = {}
        self._all_sent_at = 0.0
        self._chains: list[tuple[int, Sequence[int], float]] = []
        self._heard: dict[str, dict[int, tuple[float, float]]] = {}  # router → slot → (seconds, when heard)
        # router → slot → (unseen seconds, when heard)
        self._accounts: dict[str, dict[int, tuple[float, float]]] = {}

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
        for accounts in self._accounts.values():
            accounts.pop(slot, None)

    def sent(self, chain: Sequence[int], slot: int, ttl: float) -> None:
        """Announce that we routed this chain to this slot. ttl: seconds that it is pending."""
        if len(self._chains) < CHAINS_AT_ONCE:
            self._chains.append((slot, chain, ttl))

    def foreign(self, now: float) -> dict[int, float]:
        """Seconds of work that other routers have in flight, by slot, without those that the policy counts itself."""
        self._follow_policies(now)
        counted = self._accounts if self._followed and isinstance(self._followed[0], Cooperative) else {}
        total: dict[int, float] = {}
        for router in self._heard.keys() | counted.keys():
            for slot, (seconds, at) in {**self._heard.get(router, {}), **counted.get(router, {})}.items():
                left = seconds - (now - at)
                if left > 0.0 and now - at <= SILENCE:
                    total[slot] = total.get(slot, 0.0) + left
        return total

    # Messages

    def make(self, now: float) -> bytes | None:
        """The next message; None without news."""
        current = {self._names[slot]: round(s, 4) for slot, s in self._work().items() if slot in self._names}
        self._follow_policies(now)
        accounts = self._own_accounts(now)
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

    def _follow_policies(self, now: float) -> None:
        """When another policy came into use, all begin without accounts, and ours are sent again."""
        policies = self._policies()
        if [*map(id, policies)] != [*map(id, self._followed)]:
            for router, accounts in self._accounts.items():
                for slot in accounts:
                    self._pass_on(router, slot, None, now)
            self._accounts.clear()
            self._followed = tuple(policies)
            self._last_accounts, self._all_sent_at = {}, 0.0

    def _own_accounts(self, now: float) -> dict[str, Account]:
        policy = next(iter(self._followed), None)
        if not isinstance(policy, Cooperative):
            return {}
        found = ((name, policy.account(slot, now)) for slot, name in self._names.items())
        return {name: account for name, account in found if account is not None}

    def take(self, encoded: bytes, now: float) -> None:
        """Read a message. One of our own is ignored. SchemaError if it can't be read."""
        try:
            message = _decode(encoded)
            chains = [(name, _unpack(packed), ttl) for name, packed, ttl in message.chains]
        except (msgspec.MsgspecError, struct.error) as error:
            raise SchemaError(f"invalid work message: {error}") from error
        if message.router != self.name:
            self._follow_policies(now)
            if self._has_room(message.router):
                self._add_work(message, now)
                self._hear(message, now)
            for name, chain, ttl in chains:
                if name in self._slots:
                    self._mirror.hold_pending(chain, self._slots[name], now, min(ttl, LONGEST_HOLD))

    def _has_room(self, router: str) -> bool:
        return router in self._heard or router in self._accounts or len({*self._heard, *self._accounts}) < ROUTERS

    def _add_work(self, message: WorkMessage, now: float) -> None:
        heard = self._heard.setdefault(message.router, {})
        for name, seconds in message.work.items():
            if name in self._slots:
                heard[self._slots[name]] = (seconds, now)

    def _hear(self, message: WorkMessage, now: float) -> None:
        for name, account in message.accounts.items():
            if (slot := self._slots.get(name)) is not None:
                self._accounts.setdefault(message.router, {})[slot] = account.unseen, now
                self._pass_on(message.router, slot, account, now)

    def _pass_on(self, router: str, slot: int, account: Account | None, now: float) -> None:
        """To all policies that take accounts. None: nothing is known of that router any more."""
        for policy in self._followed:
            if isinstance(policy, Cooperative):
                policy.hear(router, slot, account, now)

    def drop_silent(self, now: float) -> None:
        """Drop what silent routers reported. Call it often."""
        for router, heard in list(self._heard.items()):
            if all(now - at > SILENCE for _, at in heard.values()):
                del self._heard[router]
        for router, accounts in list(self._accounts.items()):
            for slot in [slot for slot, (_, at) in accounts.items() if now - at > SILENCE]:
                del accounts[slot]
                self._pass_on(router, slot, None, now)
            if not accounts:
                del self._accounts[router]


def _pack(chain: Sequence[int]) -> bytes:
    kept = chain[:CHUNKS_A_CHAIN]
    return struct.pack(f"<{len(kept)}Q", *kept)


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)
