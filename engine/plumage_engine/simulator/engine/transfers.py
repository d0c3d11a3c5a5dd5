"""Counts the transfers between device and host memory, one direction: total bytes, and a histogram of sizes."""

from __future__ import annotations

from plumage.prometheus.histogram import Histogram

__all__ = ["SIZES", "Transfers"]

SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
"""Bytes; vLLM's buckets."""


class Transfers:
    """One direction."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sizes = Histogram(SIZES)

    def add(self, size: int) -> None:
        """Count one transfer; 0 bytes are none."""
        if size:
            self.bytes += size
            self.sizes.add(size)
