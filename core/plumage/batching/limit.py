"""A limit of running requests that follows the pressure on KV memory (the article §4.2).

With too large a batch, a running request that needs a block takes it from another one, whose work is computed again. A
static limit has no good value: a low one wastes throughput while requests are short. The article asks that the batch
shrinks as evictions and KV use rise, and gives no formula. Ours has three rules:

- After a step that preempted requests, the limit is a share of the batch that the step had.
- A full batch with free memory raises the limit by one, but only after some requests have ended without a preemption.
- That number of requests doubles with each preemption, and halves with each rise.

Blocks that are evicted while no request holds them do not count: a full cache is the usual state.
"""

from __future__ import annotations

from typing import Final

from plumage.batching.bounds import within

__all__ = ["BatchLimit"]


_MOST_TO_END: Final = 16


class BatchLimit:
    """`limit`: requests that may run. most: the first and the highest limit. cut: the limit after a preemption ÷ the
    batch. high: the limit does not rise while this share of the KV blocks, or more, is in use."""

    def __init__(self, most: int, *, cut: float = 0.9, high: float = 0.95) -> None:
        self.limit = self._most = int(within("most", most, 1))
        self._cut, self._high = within("cut", cut, 0, 1), within("high", high, 0, 1)
        self._to_end = 1  # requests that must end before the limit rises
        self._ended = 0

    def observe(self, running: int, preempted: int, kv_usage: float, ended: int) -> None:
        """Counts a step that ran with `running` requests, preempted `preempted` others, and `ended` requests ended in
        it."""
        if preempted:
            self.limit = max(1, min(self.limit, int((running + preempted) * self._cut)))
            self._to_end, self._ended = min(_MOST_TO_END, 2 * self._to_end), 0
            return
        self._ended += ended
        full = running >= self.limit and kv_usage < self._high
        if full and self._ended >= self._to_end and self.limit < self._most:
            self.limit += 1
            self._to_end, self._ended = max(1, self._to_end // 2), 0
