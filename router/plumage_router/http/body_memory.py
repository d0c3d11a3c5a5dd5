"""Bounds the memory of request bodies: one limit for all of them, and a fair share of it for each tenant.

- At most `total` bytes are reserved. `reserve` counts bytes before they are kept; `release` returns them.
- Bodies above `small` bytes leave a part of the memory free, so that small requests are served during large ones.
- With API keys, the large bodies of one tenant take at most half of the memory for large bodies.
- At a limit, the largest body that is still arriving is refused, of the tenant that uses most. A body that arrived
  completely is never evicted.

Pure accounting: no clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["BodyMemory", "BodyReservation"]

_SMALL: Final = 65_536  # bytes; a larger body counts as large
_SMALL_SHARE: Final = 8  # 1/8 of the memory is only for small bodies


class BodyReservation:
    """The bytes that one body has reserved.

    tenant: who sent it, "" without API keys.
    evict: refuses the rest of a body that is still arriving; None once it arrived completely.
    """

    __slots__ = ("evict", "size", "tenant")

    def __init__(self, tenant: str = "", evict: Callable[[], None] | None = None) -> None:
        self.tenant = tenant
        self.evict = evict
        self.size = 0


class BodyMemory:
    """`used`: bytes reserved now.

    total: bytes that all bodies may take together.
    shared: API keys tell tenants apart, so each gets a share.
    """

    def __init__(self, total: int, *, shared: bool = False) -> None:
        self.used = 0
        self._shared = shared
        self._by_tenant: dict[str, int] = {}
        self._arriving: dict[BodyReservation, None] = {}  # large bodies that may be evicted
        self.resize(total)

    def resize(self, total: int) -> None:
        """Sets another limit for the bytes that follow."""
        self.total = total
        self.small = min(_SMALL, total // 16)
        self.for_large = total - total // _SMALL_SHARE
        self.tenant_share = self.for_large // 2 if self._shared else self.for_large

    def reserve(self, body: BodyReservation, size: int) -> bool:
        """Counts `size` further bytes of `body`. Returns False, and counts nothing, when no memory is left for them."""
        while (tenant := self._tenant_over_limit(body, size)) is not None:
            victim = self._largest(tenant, body, size)
            if victim is None or victim is body or victim.evict is None:
                return False
            del self._arriving[victim]
            victim.evict()
        self._count(body, size)
        if body.size > self.small and body.evict is not None:
            self._arriving[body] = None
        return True

    def complete(self, body: BodyReservation) -> None:
        """The whole body arrived: it keeps its memory until it is released."""
        body.evict = None
        self._arriving.pop(body, None)

    def release(self, body: BodyReservation) -> None:
        """Returns all bytes of `body`."""
        self._arriving.pop(body, None)
        self._count(body, -body.size)

    def _count(self, body: BodyReservation, size: int) -> None:
        body.size += size
        self.used += size
        left = self._by_tenant.get(body.tenant, 0) + size
        if left:
            self._by_tenant[body.tenant] = left
        else:
            self._by_tenant.pop(body.tenant, None)

    def _tenant_over_limit(self, body: BodyReservation, size: int) -> str | None:
        """Returns the tenant that must give up memory for `size` more bytes; None when they fit."""
        large = body.size + size > self.small
        if large and self._by_tenant.get(body.tenant, 0) + size > self.tenant_share:
            return body.tenant
        if self.used + size <= (self.for_large if large else self.total):
            return None
        tenants = {other.tenant for other in self._arriving}
        if large or not tenants:
            tenants.add(body.tenant)
        return max(tenants, key=lambda name: self._by_tenant.get(name, 0))

    def _largest(self, tenant: str, body: BodyReservation, size: int) -> BodyReservation | None:
        """Returns the tenant's largest body that is still arriving. `body` counts with the bytes it asks for."""
        own = [other for other in self._arriving if other.tenant == tenant]
        if body.tenant == tenant and body not in self._arriving:
            own.append(body)
        return max(own, key=lambda other: other.size + (size if other is body else 0), default=None)
