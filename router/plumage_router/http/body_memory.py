"""Holds request bodies and bounds their memory: one limit for all of them, and a fair share of it for each tenant.

- At most `total` bytes are reserved. `reserve` counts bytes before they are kept; `release` returns them.
- Bodies above `small` bytes leave a part of the memory free, so that small requests are served during large ones.
- The bodies of one tenant, small ones included, take at most half of the memory; its large bodies a little less.
- Without API keys the client's address is its tenant while a body arrives. Complete bodies count to no tenant then,
  because one address may be a proxy of many clients.
- Copies of requests (`multi_pool`) get an eighth of the memory at most, and only what is free. At the limit for all,
  they are dropped before any other body is refused.
- At a limit, one of the largest bodies that are still arriving is refused, of the tenant that uses most. A body that
  arrived completely is never evicted.

A body that arrives in one piece is counted twice and enters no list. All steps but the choice of a tenant, at the limit
for all, take the same time for any number of bodies.

No clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["BodyBuffer", "BodyMemory", "BodyReservation"]

_SMALL: Final = 65_536  # bytes; a larger body counts as large
_SMALL_SHARE: Final = 8  # 1/8 of the memory is only for small bodies
_COPIES_SHARE: Final = 8  # 1/8 of the memory at most is for copies of requests
_MOST_EVICTED: Final = 32  # bodies that one piece of another may evict; bounds the time of `reserve`
_SMALL_PART, _COLLECTED = 2048, 65_536  # bytes: parts below the first are collected, up to the second


class BodyBuffer:
    """The parts of one body as they arrived, of any size, and the whole. A body in one part is never copied.

    Python adds about fifty bytes to each bytes object. So small parts are collected in a bytearray. The buffer then
    takes about as much memory as `BodyMemory` counts, even when a client sends byte by byte.

    To join 16 MB takes 15 ms. So a large body is first checked part by part, and joined only if it will be parsed.

    `counted`: its containers and keys, once they are known to be few (`request/body.py`).
    """

    __slots__ = ("_parts", "_size", "counted")

    def __init__(self, data: bytes = b"") -> None:
        self.counted: tuple[int, int] | None = None
        self._parts: list[bytes | bytearray] = [data] if data else []
        self._size = len(data)

    def __len__(self) -> int:
        return self._size

    @property
    def parts(self) -> Sequence[bytes | bytearray]:
        return self._parts

    def add(self, data: bytes) -> None:
        parts = self._parts
        self._size += len(data)
        if len(data) >= _SMALL_PART or not parts:
            parts.append(data)
            return
        last = parts[-1]
        if isinstance(last, bytearray) and len(last) < _COLLECTED:
            last += data
        else:
            parts.append(bytearray(data))

    def whole(self) -> bytes:
        """Returns the whole body. The first call joins its parts."""
        parts = self._parts
        if len(parts) == 1 and type(parts[0]) is bytes:
            return parts[0]
        joined = b"".join(parts)
        self._parts = [joined]
        return joined

    def share(self) -> BodyBuffer:
        """Returns another buffer with the same complete body, none of whose bytes is copied."""
        other = BodyBuffer()
        other._parts, other._size = list(self._parts), self._size
        return other

    def clear(self) -> None:
        self._parts = []
        self._size = 0


class _Account:
    """The memory of one tenant. used: bytes. arriving: its unfinished bodies, by the bit length of their size."""

    __slots__ = ("arriving", "used")

    def __init__(self) -> None:
        self.used = 0
        self.arriving: dict[int, dict[BodyReservation, None]] = {}

    def largest(self) -> BodyReservation | None:
        """Returns the oldest of the largest unfinished bodies: none is twice as large."""
        return next(iter(self.arriving[max(self.arriving)])) if self.arriving else None


class BodyReservation:
    """The bytes that one body has reserved.

    tenant: who sent it; the client's address without API keys.
    evict: refuses the rest of a body that is still arriving, or drops a copy; None once it arrived completely.
    """

    __slots__ = ("_group", "evict", "size", "tenant")

    def __init__(self, tenant: str = "", evict: Callable[[], None] | None = None) -> None:
        self.tenant = tenant
        self.evict = evict
        self.size = 0
        self._group = 0  # where it is listed in `_Account.arriving`; 0: nowhere


class BodyMemory:
    """`used`: bytes reserved now.

    total: bytes that all bodies may take together.
    keyed: API keys name the tenants, so complete bodies count to them too.
    """

    def __init__(self, total: int, *, keyed: bool = False) -> None:
        self.used = self._peak = 0
        self._keyed = keyed
        self._accounts: dict[str, _Account] = {}  # of tenants with bytes or unfinished bodies
        self._copies: dict[BodyReservation, None] = {}  # oldest first
        self._copied = 0  # bytes of them
        self.resize(total)

    def __len__(self) -> int:
        """Tenants, or addresses of clients, with bodies in memory."""
        return len(self._accounts)

    def resize(self, total: int) -> None:
        """Sets another limit for the bytes that follow."""
        self.total = total
        self.small = min(_SMALL, total // 16)
        self.for_large = total - total // _SMALL_SHARE
        self.for_copies = total // _COPIES_SHARE
        self.tenant_share = total // 2
        self.tenant_share_for_large = self.for_large // 2

    def reserve(self, body: BodyReservation, size: int) -> bool:
        """Counts `size` further bytes of `body`. Returns False, and counts nothing, when no memory is left for them."""
        account = self._accounts.get(body.tenant)
        if account is None:
            account = self._accounts[body.tenant] = _Account()
        large = body.size + size > self.small
        share = self.tenant_share_for_large if large else self.tenant_share
        limit = self.for_large if large else self.total
        if account.used + size > share or self.used + size > limit:
            if not self._make_room(body, account, size, share, limit):
                self._drop_empty(body.tenant, account)
                return False
            self._accounts[body.tenant] = account  # an eviction may have emptied it
        account.used += size
        self.used += size
        body.size += size
        if self.used > self._peak:
            self._peak = self.used
        return True

    def reserve_copy(self, body: BodyReservation, size: int) -> bool:
        """Counts the body of a copy, whose `evict` must release it. Returns False when no memory is free for it."""
        if self._copied + size > self.for_copies or self.used + size > self.for_large:
            return False
        self._copies[body] = None
        body.size = size
        self._copied += size
        self.used += size
        self._peak = max(self._peak, self.used)
        return True

    def release_copy(self, body: BodyReservation) -> None:
        """Returns all bytes of a copy's body; nothing if that was done before."""
        if body in self._copies:
            del self._copies[body]
            self._copied -= body.size
            self.used -= body.size
            body.size = 0

    def take_peak(self) -> int:
        """Returns the most bytes that were reserved at once since the last call."""
        peak, self._peak = self._peak, self.used
        return peak

    def unfinished(self, body: BodyReservation) -> None:
        """Lists `body`, of which more is to come: it may be evicted from now on."""
        group = body.size.bit_length()
        if group != body._group and body.evict is not None:
            arriving = self._accounts[body.tenant].arriving
            self._unlist(body, arriving)
            arriving.setdefault(group, {})[body] = None
            body._group = group

    def complete(self, body: BodyReservation) -> None:
        """Lets a body that arrived completely keep its memory until it is released."""
        body.evict = None
        account = self._accounts.get(body.tenant)
        if account is not None:  # None: the body is empty
            self._unlist(body, account.arriving)
            if not self._keyed:
                account.used -= body.size
            self._drop_empty(body.tenant, account)

    def release(self, body: BodyReservation) -> None:
        """Returns all bytes of `body`."""
        account = self._accounts.get(body.tenant)
        if account is not None:
            self._unlist(body, account.arriving)
            if self._keyed or body.evict is not None:
                account.used -= body.size
            self._drop_empty(body.tenant, account)
        self.used -= body.size
        body.size = 0

    def _make_room(self, body: BodyReservation, account: _Account, size: int, share: int, limit: int) -> bool:
        """Evicts bodies until `size` more bytes of `body` fit. Returns False when they do not, or `body` is refused."""
        for _ in range(_MOST_EVICTED):
            if account.used + size > share:
                victim = account.largest()
            elif self.used + size > limit and self._drop_copy():
                continue
            elif self.used + size > limit:
                victim = self._greediest(body, account, size).largest()
            else:
                return True
            if victim is None or victim is body or victim.evict is None:
                return False
            if victim.tenant == body.tenant and victim.size < body.size + size:
                return False  # `body` is the largest itself
            self._unlist(victim, self._accounts[victim.tenant].arriving)
            victim.evict()
        return False

    def _drop_copy(self) -> bool:
        """Drops the oldest copy. Returns False without one."""
        copy = next(iter(self._copies), None)
        if copy is None or copy.evict is None:
            return False
        copy.evict()
        return copy not in self._copies

    def _greediest(self, body: BodyReservation, own: _Account, size: int) -> _Account:
        """Returns the account that uses most, of those with unfinished bodies. A large `body` may be the one to go."""
        accounts = [account for account in self._accounts.values() if account.arriving]
        if not accounts or (not own.arriving and body.size + size > self.small):
            accounts.append(own)
        return max(accounts, key=lambda account: account.used)

    def _unlist(self, body: BodyReservation, arriving: dict[int, dict[BodyReservation, None]]) -> None:
        group, body._group = body._group, 0
        if group:
            del arriving[group][body]
            if not arriving[group]:
                del arriving[group]

    def _drop_empty(self, tenant: str, account: _Account) -> None:
        if not account.used and not account.arriving:
            self._accounts.pop(tenant, None)
