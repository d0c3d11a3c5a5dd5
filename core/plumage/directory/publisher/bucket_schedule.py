"""When to rewrite which bucket of a snapshot, so that the log of changes stays short and no rewrite is large.

Each byte appended to the log is a debt; a bucket rewritten pays for one 64th of the log's target length. In a steady
state the log holds about the changes of one round over all buckets, writing costs a constant times the changes, and
the server never holds two snapshots. Pure.
"""

from __future__ import annotations

from plumage.directory.schema import BUCKETS, RECORD

__all__ = ["BucketSchedule"]

LOG_SHARE = 4  # the log is kept near this fraction of the snapshot …
LOG_LEAST = 32 << 10  # … or near this many bytes, where the snapshot is small
AT_ONCE = 8  # buckets: so that one write stays small, and most writes of the log are not replica_view by any


class BucketSchedule:
    """`seqs[b]`: the log entry that bucket b, as written last, is valid at."""

    def __init__(self) -> None:
        self.seqs = [0] * BUCKETS
        self._next = 0
        self._debt = 0.0

    def begin(self) -> None:
        """A whole snapshot is about to be written: nothing is owed."""
        self._debt = 0.0

    def due(self, logged: int, held: int) -> list[int]:
        """Buckets to rewrite after `logged` more bytes of log, with `held` chunks in the snapshot: none until several
        are owed. After a large write more may be owed: ask again, with 0, until none are. One round is all there is."""
        target = max(LOG_LEAST, held * RECORD.size // LOG_SHARE)
        price = AT_ONCE * target / BUCKETS
        self._debt = min(self._debt + logged, target)
        if self._debt < price:
            return []
        self._debt -= price
        buckets = [(self._next + step) % BUCKETS for step in range(AT_ONCE)]
        self._next = (self._next + AT_ONCE) % BUCKETS
        return buckets

    @property
    def trim_before(self) -> int:
        """Log entries below this number are in every bucket."""
        return min(self.seqs) + 1
