"""Memory for request bodies: one bound for all of them, and a fair share of it for each tenant.

Contract: `add` counts bytes before they are kept, `release` returns them. At most `total` bytes are held. Bodies above
`small` bytes leave a reserve free, so that small requests are served while large ones fill the rest. With API keys one
tenant's large bodies take at most half of what large bodies may take. When a bound is reached, the largest body that is
still arriving is refused first, of the tenant that holds most; bodies that arrived whole are never taken back.
Pure accounting: no clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["Held", "Room"]

SMALL: Final = 65_536  # bytes; a request above this is large
RESERVE: Final = 8  # 1/8 of the room is for small requests


class Held:
    """Bytes of one body. tenant: who sent it, "" where no keys are used. evict: refuses the rest of a body that is
    still arriving; None once it arrived whole."""

    __slots__ = ("evict", "size", "tenant")

    def __init__(self, tenant: str = "", evict: Callable[[], None] | None = None) -> None:
        self.tenant = tenant
        self.evict = evict
        self.size = 0


class Room:
    """total: bytes that all bodies may take. shared: tenants are told apart by their keys."""

    def __init__(self, total: int, *, shared: bool = False) -> None:
        self.held = 0
        self._shared = shared
        self._tenants: dict[str, int] = {}
        self._large: dict[Held, None] = {}
        self.use(total)

    def use(self, total: int) -> None:
        """Another bound, from the next byte on."""
        self.total = total
        self.small = min(SMALL, total // 16)
        self.for_large = total - total // RESERVE
        self.share = self.for_large // 2 if self._shared else self.for_large

    def add(self, body: Held, size: int) -> bool:
        """Counts `size` further bytes of `body`. False where there is no room for them; they are not counted then."""
        while (tenant := self._crowded(body, size)) is not None:
            victim = self._largest(tenant, body, size)
            if victim is None or victim is body or victim.evict is None:
                return False
            del self._large[victim]
            victim.evict()
        self._count(body, size)
        if body.size > self.small and body.evict is not None:
            self._large[body] = None
        return True

    def arrived(self, body: Held) -> None:
        """The body is whole: it stays until it is released."""
        body.evict = None
        self._large.pop(body, None)

    def release(self, body: Held) -> None:
        """Returns all bytes of `body`."""
        self._large.pop(body, None)
        self._count(body, -body.size)

    def _count(self, body: Held, size: int) -> None:
        body.size += size
        self.held += size
        left = self._tenants.get(body.tenant, 0) + size
        if left:
            self._tenants[body.tenant] = left
        else:
            self._tenants.pop(body.tenant, None)

    def _crowded(self, body: Held, size: int) -> str | None:
        """The tenant that must give way for `size` bytes more; None where they fit."""
        large = body.size + size > self.small
        if large and self._tenants.get(body.tenant, 0) + size > self.share:
            return body.tenant
        if self.held + size <= (self.for_large if large else self.total):
            return None
        tenants = {other.tenant for other in self._large}
        if large or not tenants:
            tenants.add(body.tenant)
        return max(tenants, key=lambda name: self._tenants.get(name, 0))

    def _largest(self, tenant: str, body: Held, size: int) -> Held | None:
        """Of a tenant's large bodies that are still arriving; `body` counts with the bytes that it asks for."""
        own = [other for other in self._large if other.tenant == tenant]
        if body.tenant == tenant and body not in self._large:
            own.append(body)
        return max(own, key=lambda other: other.size + (size if other is body else 0), default=None)
