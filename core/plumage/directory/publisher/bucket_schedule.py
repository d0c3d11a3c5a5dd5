"""Which buckets of a snapshot to rewrite, and when: so that the log stays short and no rewrite is large.

Each byte appended to the log counts towards the next rewrite. One rewritten bucket allows for one 64th of the log's
target length. In a steady state the log holds about the changes of one round over all buckets. The cost of writing is
a constant times the changes, and the server never holds two snapshots. Pure.
"""

from __future__ import annotations

from plumage.directory.schema import BUCKETS, RECORD

__all__ = ["BucketSchedule"]

LOG_SHARE = 4  # the log is kept near this fraction of the snapshot …
LOG_LEAST = 32 << 10  # … or near this many bytes, where the snapshot is small
AT_ONCE = 8  # buckets: one write stays small, and most writes of the log rewrite no bucket


class BucketSchedule:
    """`seqs[b]`: the log entry that bucket b was valid at when it was last written."""

    def __init__(self) -> None:
        self.seqs = [0] * BUCKETS
        self._next = 0
        self._unpaid = 0.0  # bytes appended to the log since the last rewrite that they paid for

    def reset(self) -> None:
        """Starts again before a whole snapshot is written: no rewrite is due."""
        self._unpaid = 0.0

    def due(self, logged: int, held: int) -> list[int]:
        """Buckets to rewrite now: `AT_ONCE` of them, or none until that many are due.

        After a large write more may be due: call again with `logged` 0 until the list is empty. Never more than one
        round over all buckets is due.
        logged: bytes appended to the log since the last call. held: chunks in the snapshot."""
        target = max(LOG_LEAST, held * RECORD.size // LOG_SHARE)
        price = AT_ONCE * target / BUCKETS
        self._unpaid = min(self._unpaid + logged, target)
        if self._unpaid < price:
            return []
        self._unpaid -= price
        buckets = [(self._next + step) % BUCKETS for step in range(AT_ONCE)]
        self._next = (self._next + AT_ONCE) % BUCKETS
        return buckets

    @property
    def trim_before(self) -> int:
        """Log entries below this number are in every bucket."""
        return min(self.seqs) + 1
