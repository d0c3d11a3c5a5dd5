"""One replica's log, as a router reads it: applies entries and detects missing ones.

Between `begin` and `commit`, a snapshot's buckets and the log entries after them are staged apart from the mirror.
After that, `take` applies entries as they come. Entries are numbered without gaps, so a gap is detected at once. Count
and digest are updated and compared with the writer's check marks. `OutOfStep` means that the snapshot must be read
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

__all__ = ["LOG_PIECE", "LogReader", "OutOfStep", "StreamEntry", "in_pieces", "weight"]

PIECE = 1024 * RECORD.size  # bytes of a snapshot that are applied at once: about a millisecond
LOG_PIECE = 4 * PIECE  # … of logs: on a busy event loop they get one piece per turn, and must not fall behind
ENTRY = 6 * RECORD.size  # the cost of an entry beside its records: 3.5 µs, where a record takes 0.6 µs

StreamEntry = tuple[bytes, Mapping[bytes, bytes]]
Changes = list[tuple[int, int, int]]


def in_pieces(entries: Iterable[StreamEntry]) -> Iterator[list[StreamEntry]]:
    """Log entries in their order, about `LOG_PIECE` of `weight` at a time. An entry is never cut."""
    piece: list[StreamEntry] = []
    room = LOG_PIECE
    for entry in entries:
        piece.append(entry)
        room -= weight(entry)
        if room <= 0:
            yield piece
            piece, room = [], LOG_PIECE
    if piece:
        yield piece


def weight(entry: StreamEntry) -> int:
    """The time to apply an entry, in bytes of records."""
    return sum(map(len, entry[1].values())) + ENTRY


class OutOfStep(Exception):  # noqa: N818 - a result, not a failure
    """The log does not continue what was applied. reason: gap, digest or gone."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class LogReader:
    """Keeps one slot of a mirror in step with one replica's log.

    epoch: None until a snapshot is loaded. seq: last entry applied. count, digest: of the chunks after it."""

    def __init__(self, mirror: Mirror, slot: int) -> None:
        self.slot = slot
        self.epoch: str | None = None
        self.seq = 0
        self.count = 0
        self.digest = 0
        self._mirror = mirror
        self._staged: StagedSnapshot | None = None
        self._last_epoch: str | None = None  # the last epoch loaded; it stays when the cache becomes unknown
        self._bucket_seqs = [0] * BUCKETS
        self._consistent_from = 0  # from this entry on, every bucket is older than the log

    # The snapshot

    def begin(self) -> None:
        """Begin a snapshot. The old chunks stay in use until `commit`."""
        self.abandon()
        self._staged = self._mirror.stage_snapshot(self.slot)
        self.count = self.digest = 0

    def take_bucket(self, number: int, data: bytes) -> Iterator[None]:
        """Stage one bucket, a piece per step. OutOfStep: the snapshot was abandoned meanwhile."""
        self._bucket_seqs[number], records = unpack_bucket(data)
        for first in range(0, len(records), PIECE):
            changes, count, digest = unpack_records(records[first : first + PIECE])
            self._require_staged().add(changes)
            self._account(count, digest)
            yield

    def buckets_done(self) -> None:
        self.seq, self._consistent_from = min(self._bucket_seqs), max(self._bucket_seqs)

    def catch_up(self, entries: Sequence[StreamEntry]) -> None:
        """Stage log entries after the snapshot. OutOfStep: it was abandoned, or there is a gap."""
        self._require_staged()
        self.take(entries)

    def commit(self, epoch: str) -> Iterator[None]:
        """Make the staged chunks visible, in the last step. OutOfStep: the snapshot was abandoned."""
        restarted = self._last_epoch not in (None, epoch)
        if not restarted:
            yield from self._require_staged().carry()
        self._require_staged().commit(restarted=restarted)
        self._staged = None
        self.epoch = self._last_epoch = epoch

    def _require_staged(self) -> StagedSnapshot:
        """The staged snapshot. OutOfStep if it was abandoned: a cancelled load may continue (see `tasks`)."""
        if self._staged is None:
            raise OutOfStep("gone")
        return self._staged

    def abandon(self) -> None:
        if self._staged is not None:
            self._staged.abandon()
            self._staged = None

    def forget(self) -> None:
        """The replica's cache is unknown: drop its reported chunks. Its pending chunks stay.

        No log may be applied until the next snapshot, see `Mirror.drop_confirmed`."""
        self.abandon()
        if self.epoch is not None:
            self.epoch = None
            self._mirror.drop_confirmed(self.slot)

    # The log

    def take(self, entries: Sequence[StreamEntry]) -> int:
        """Apply log entries in order; returns the number of changes. Entries applied before are ignored.

        OutOfStep: there is a gap, or a check mark differs."""
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
        if seq <= self._consistent_from:
            records = b"".join(self._newer_records(seq, records))
        changes, count, digest = unpack_records(records)
        self._write(changes)
        self._account(count, digest)
        self.seq = seq
        if check is not None and seq >= self._consistent_from and check != (self.count, self.digest):
            raise OutOfStep("digest")
        return len(changes)

    def _newer_records(self, seq: int, records: bytes) -> Iterable[bytes]:
        """The records of an entry that are newer than their bucket."""
        for at in range(0, len(records), RECORD.size):
            chunk, _ = RECORD.unpack_from(records, at)
            if seq > self._bucket_seqs[chunk >> BUCKET_SHIFT]:
                yield records[at : at + RECORD.size]

    def agrees(self, beat: Beat) -> bool:
        """False if a heartbeat contradicts what was applied. A heartbeat of another moment can't contradict it."""
        comparable = beat.epoch == self.epoch and beat.seq == self.seq and self.seq >= self._consistent_from
        return not comparable or (beat.count, beat.digest) == (self.count, self.digest)

    def _write(self, changes: Changes) -> None:
        if self._staged is not None:
            self._staged.add(changes)
        else:
            self._mirror.apply(self.slot, changes)

    def _account(self, count: int, digest: int) -> None:
        self.count += count
        self.digest = self.digest + digest & DIGEST_MASK
