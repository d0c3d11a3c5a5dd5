"""A limit of running requests that follows the pressure on KV memory (the article §4.2).

A batch larger than memory bears is thrashed: a running request that needs a block takes it from another, whose work is
computed again. A static limit is either below that point, and wastes throughput while requests are short, or above it.
The article asks that the batch shrinks as evictions and KV use rise, and says no more; this is our rule: a step that
had to preempt cuts the limit below the batch it had. A full batch with memory to spare raises it by one, but only
after some requests have ended in peace: twice as many after each preemption, half as many after each rise, so that a
batch at the edge is not thrashed again and again, and a load that has become lighter is soon served in full. Blocks
that are evicted from the cache while no request holds them are no sign of thrashing: a full cache is the usual state.
"""

from __future__ import annotations

from typing import Final

from plumage.batching.bounds import within

__all__ = ["BatchLimit"]


_MOST_PATIENCE: Final = 16


class BatchLimit:
    """`limit`: requests that may run. most: where it begins, and what it never passes. cut: what a preemption leaves of
    the batch. high: share of the KV blocks in use from which on the limit does not rise."""

    def __init__(self, most: int, *, cut: float = 0.9, high: float = 0.95) -> None:
        self.limit = self._most = int(within("most", most, 1))
        self._cut, self._high = within("cut", cut, 0, 1), within("high", high, 0, 1)
        self._patience = 1  # requests that must end before the limit rises
        self._ended = 0

    def observe(self, running: int, preempted: int, kv_usage: float, ended: int) -> None:
        """A step ran with `running` requests, having sent `preempted` others back to wait; `ended` were answered."""
        if preempted:
            self.limit = max(1, min(self.limit, int((running + preempted) * self._cut)))
            self._patience, self._ended = min(_MOST_PATIENCE, 2 * self._patience), 0
            return
        self._ended += ended
        full = running >= self.limit and kv_usage < self._high
        if full and self._ended >= self._patience and self.limit < self._most:
            self.limit += 1
            self._patience, self._ended = max(1, self._patience // 2), 0
