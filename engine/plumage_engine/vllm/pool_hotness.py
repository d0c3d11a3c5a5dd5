"""Hotness that the whole pool measured, as the agent reports it (decision 0152).

It ranks host memory's chunks before local uses do, and the device's cached blocks where they are evicted by hotness.
A report expires: without an agent or a directory the engine ranks by its own uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

__all__ = ["LIFETIME", "MAX_CHUNKS", "HotnessReport", "PoolHotness"]

LIFETIME = 60.0
"""Seconds that a report is valid; the agent sends one every ten."""
MAX_CHUNKS = 1 << 16
"""Chunks that a report may name."""


class HotnessReport(msgspec.Struct, frozen=True):
    """The agent's report, as JSON.

    uses: the pool's uses by block hash (the low 64 bits, as KV events have them).
    """

    uses: dict[int, float]


class PoolHotness:
    """The last report. It implements `Prior` of `offload.host_tier.chunk_hotness`.

    clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._uses: Mapping[int, float] = {}
        self._until = float("-inf")

    def __len__(self) -> int:
        """Chunks with a valid hotness."""
        return len(self._uses) if self._clock() < self._until else 0

    def update(self, uses: Mapping[int, float]) -> None:
        """Replace the last report.

        uses: the pool's uses by 64-bit block hash.
        """
        self._uses = uses
        self._until = self._clock() + LIFETIME

    def prior(self, key: int) -> float | None:
        """The pool's uses of a chunk; None where the report does not name it or has expired."""
        return self._uses.get(key) if self._clock() < self._until else None
