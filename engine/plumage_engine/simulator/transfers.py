"""What crossed the link between device and host, one way: totals, and how large each transfer was."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["SIZES", "Histogram", "Transfers"]

SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
"""Bytes; vLLM's buckets."""


class Histogram:
    """Counts by bucket; an observation costs a bisection."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), as Prometheus wants them."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class Transfers:
    """One direction."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sizes = Histogram(SIZES)

    def add(self, size: int) -> None:
        """One transfer; none of nothing."""
        if size:
            self.bytes += size
            self.sizes.observe(size)
