"""What the pool knows of hotness, as the agent hands it over: it ranks host memory's chunks before local uses do, and
the device's cached blocks where they are evicted by hotness (0152).

It lapses: an agent that is away, or whose directory is, leaves the ranking to what this engine saw by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

__all__ = ["LIFETIME", "MOST", "PooledHeats", "Told"]

LIFETIME = 60.0
"""Seconds that an agent's word holds; it renews it every ten."""
MOST = 1 << 16
"""Chunks that it may name."""


class Told(msgspec.Struct, frozen=True):
    """The agent's word, as JSON. heats: by block hash (64 bits, as KV events tell it), the pool's uses of it."""

    heats: dict[int, float]


class PooledHeats:
    """The `Prior` of `offload.host_tier.chunk_hotness` over the agent's last word. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heats: Mapping[int, float] = {}
        self._until = float("-inf")

    def __len__(self) -> int:
        """Chunks that are ranked now."""
        return len(self._heats) if self._clock() < self._until else 0

    def tell(self, heats: Mapping[int, float]) -> None:
        """Replace the last word. heats: uses, in the pool, of the chunk with that 64-bit hash."""
        self._heats = heats
        self._until = self._clock() + LIFETIME

    def prior(self, key: int) -> float | None:
        """The pool's uses of a chunk; None where it said nothing of it, or not of late."""
        return self._heats.get(key) if self._clock() < self._until else None
