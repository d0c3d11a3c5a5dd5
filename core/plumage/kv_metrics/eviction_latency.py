"""End-to-end latency of requests, and of those that ran while blocks were evicted (the article's P99 under eviction).

A request ran under eviction if the pool evicted a cached block between its first admission and its end.
"""

from __future__ import annotations

from plumage.prometheus.histogram import Histogram

__all__ = ["SECONDS", "EvictionLatency"]

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 240.0, 480.0)
"""Upper ends of the histograms' buckets."""


class EvictionLatency:
    """under: latencies of requests that ran under eviction. without: of all others. Requests in flight are remembered
    by id until `ended` or `dropped`."""

    def __init__(self) -> None:
        self.under, self.without = Histogram(SECONDS), Histogram(SECONDS)
        self._began: dict[str, int] = {}

    def admitted(self, request_id: str, evictions: int) -> None:
        """evictions: of the pool so far. Only the first admission counts."""
        self._began.setdefault(request_id, evictions)

    def ended(self, request_id: str, evictions: int, seconds: float) -> bool:
        """A request ended after `seconds`. Returns whether it ran under eviction; one that was never admitted did not
        run, and counts nowhere."""
        began = self._began.pop(request_id, None)
        if began is None:
            return False
        under = evictions > began
        (self.under if under else self.without).add(seconds)
        return under

    def dropped(self, request_id: str) -> None:
        """A request was aborted."""
        self._began.pop(request_id, None)
