"""One replica's log as a router reads it: what may be applied, what proves that something is missing.

Contract: between `begin` and `commit` a snapshot's buckets and the log entries after them are gathered apart; from then
on `take` applies entries as they come. Entries are numbered without holes, so a hole is seen at once; count and digest
are kept along and compared with the writer's check marks. What does not fit raises `OutOfStep`: the snapshot is needed
again. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.staged_snapshot import StagedSnapshot
from plumage.directory.schema import (
    BUCKET_SHIFT,
    BUCKETS,
    DIGEST_MASK,
    RECORD,
    Beat,
    read_entry,
    sequence,
    unpack_bucket,
    unpack_records,
)

__all__ = ["LOG_PIECE", "Entry", "LogReader", "OutOfStep", "in_pieces", "weight"]

PIECE = 1024 * RECORD.size  # bytes of a snapshot taken in at once: about a millisecond of the event loop
LOG_PIECE = 4 * PIECE  # … of logs: where requests fill the loop, they get one piece a turn, and must not fall behind
ENTRY = 6 * RECORD.size  # what an entry takes beside its records: 3.5 µs, and a record 0.6

Entry = tuple[bytes, Mapping[bytes, bytes]]
Changes = list[tuple[int, int, int]]


def in_pieces(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Log entries in their order, a weight of about `LOG_PIECE` at a time; an entry is never cut."""
    piece: list[Entry] = []
    room = LOG_PIECE
    for entry in entries:
        piece.append(entry)
        room -= weight(entry)
        if room <= 0:
            yield piece
            piece, room = [], LOG_PIECE
    if piece:
        yield piece


def weight(entry: Entry) -> int:
    """The time that an entry takes, in bytes of records."""
    return sum(map(len, entry[1].values())) + ENTRY


class OutOfStep(Exception):  # noqa: N818 - it is an answer, not a failure
    """What is known does not follow from the log. `reason`: gap, digest or gone."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class LogReader:
    """Keeps one slot of a mirror in step with one replica's log. `epoch` is None until a snapshot is loaded."""

    def __init__(self, mirror: Mirror, slot: int) -> None:
        self.slot = slot
        self.epoch: str | None = None
        self.seq = 0
        self.count = 0
        self.digest = 0
        self._mirror = mirror
        self._staged: StagedSnapshot | None = None
        self._life: str | None = None  # the last epoch that was loaded, kept when the cache becomes unknown
        self._bucket_seqs = [0] * BUCKETS
        self._settled = 0  # from this entry on, every bucket is older than the log

    # The snapshot

    def begin(self) -> None:
        """A snapshot comes; what is known stays in use until it is whole."""
        self.abandon()
        self._staged = self._mirror.stage_snapshot(self.slot)
        self.count = self.digest = 0

    def take_bucket(self, number: int, data: bytes) -> Iterator[None]:
        """Take one bucket in, a piece at a step; OutOfStep when the snapshot was abandoned meanwhile."""
        self._bucket_seqs[number], records = unpack_bucket(data)
        for first in range(0, len(records), PIECE):
            changes, count, digest = unpack_records(records[first : first + PIECE])
            self._filled().add(changes)
            self._account(count, digest)
            yield

    def buckets_done(self) -> None:
        self.seq, self._settled = min(self._bucket_seqs), max(self._bucket_seqs)

    def catch_up(self, entries: Sequence[Entry]) -> None:
        """Log entries behind the snapshot, which go where it goes. OutOfStep as above, or for a gap."""
        self._filled()
        self.take(entries)

    def commit(self, epoch: str) -> Iterator[None]:
        """The snapshot and the log up to now are in: routers see them from the last step on. OutOfStep as above."""
        reborn = self._life not in (None, epoch)
        if not reborn:
            yield from self._filled().carry()
        self._filled().commit(reborn=reborn)
        self._staged = None
        self.epoch = self._life = epoch

    def _filled(self) -> StagedSnapshot:
        """A cancelled load may go on (see `tasks`): half a snapshot would pass for a whole one."""
        if self._staged is None:
            raise OutOfStep("gone")
        return self._staged

    def abandon(self) -> None:
        if self._staged is not None:
            self._staged.abandon()
            self._staged = None

    def forget(self) -> None:
        """The replica's cache is unknown; what the router itself expects of it stays. See `Mirror.unlearn`: no log
        may be taken until the next snapshot."""
        self.abandon()
        if self.epoch is not None:
            self.epoch = None
            self._mirror.drop_confirmed(self.slot)

    # The log

    def take(self, entries: Sequence[Entry]) -> int:
        """Apply log entries in order; the number of changes. Entries seen before are passed over."""
        taken = 0
        for identifier, fields in entries:
            seq = sequence(identifier)
            if seq <= self.seq:
                continue
            if seq != self.seq + 1:
                raise OutOfStep("gap")
            taken += self._take_one(seq, fields)
        return taken

    def _take_one(self, seq: int, fields: Mapping[bytes, bytes]) -> int:
        records, check = read_entry(fields)
        if seq <= self._settled:
            records = b"".join(self._news(seq, records))
        changes, count, digest = unpack_records(records)
        self._write(changes)
        self._account(count, digest)
        self.seq = seq
        if check is not None and seq >= self._settled and check != (self.count, self.digest):
            raise OutOfStep("digest")
        return len(changes)

    def _news(self, seq: int, records: bytes) -> Iterable[bytes]:
        """The records of an entry that are newer than their bucket."""
        for at in range(0, len(records), RECORD.size):
            chunk, _ = RECORD.unpack_from(records, at)
            if seq > self._bucket_seqs[chunk >> BUCKET_SHIFT]:
                yield records[at : at + RECORD.size]

    def agrees(self, beat: Beat) -> bool:
        """Whether a heartbeat contradicts what was applied; one about another moment does not."""
        comparable = beat.epoch == self.epoch and beat.seq == self.seq and self.seq >= self._settled
        return not comparable or (beat.count, beat.digest) == (self.count, self.digest)

    def _write(self, changes: Changes) -> None:
        if self._staged is not None:
            self._staged.add(changes)
        else:
            self._mirror.apply(self.slot, changes)

    def _account(self, count: int, digest: int) -> None:
        self.count += count
        self.digest = self.digest + digest & DIGEST_MASK
