"""Log entries that the server has not acknowledged yet.

Entries are numbered without gaps, and the numbers continue in a new epoch. Each entry has its number as its id, so
the server refuses an entry that is sent twice. The writer bounds the outbox: it starts a new epoch when the outbox is
`full`. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from plumage.directory.client.redis_pipeline import Command
from plumage.directory.schema import pack_entry

__all__ = ["ENTRIES_AT_ONCE", "Outbox", "OutboxEntry", "append_commands", "log_bytes"]

OUTBOX_BYTES = 4 << 20  # above it a whole snapshot is cheaper than the changes
ENTRIES_AT_ONCE = 256
ENTRY_OVERHEAD = 24  # bytes of a stream entry beside its records


class OutboxEntry(NamedTuple):
    """check: count and digest after this entry, or None without a check mark."""

    seq: int
    records: bytes
    check: tuple[int, int] | None


class Outbox:
    """The entries that wait; `len` counts them.

    last: number of the last entry that was added.
    acknowledged: number of the last entry that the server has; 0 if it has none of this epoch.
    last_checked: number of the last entry with a check mark.
    size: bytes of the entries that wait."""

    def __init__(self) -> None:
        self.last = self.acknowledged = self.last_checked = 0
        self.size = 0
        self._entries: deque[OutboxEntry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return self.size > OUTBOX_BYTES

    def add(self, records: bytes, check: tuple[int, int] | None = None) -> None:
        """Add one entry. check: count and digest after it, as a check mark."""
        self.last += 1
        self._entries.append(OutboxEntry(self.last, records, check))
        self.size += len(records) + ENTRY_OVERHEAD
        if check is not None:
            self.last_checked = self.last

    def batch(self) -> list[OutboxEntry]:
        """The oldest entries: at most `ENTRIES_AT_ONCE`."""
        return list(islice(self._entries, ENTRIES_AT_ONCE))

    def acknowledge(self, batch: Sequence[OutboxEntry]) -> None:
        """Removes `batch`, the oldest entries, which the server has stored."""
        for _ in batch:
            self._entries.popleft()
        self.size -= log_bytes(batch)
        self.acknowledged = batch[-1].seq

    def clear(self) -> None:
        """Drops all entries for a new epoch: its snapshot replaces the entries, and the server has none of its log."""
        self._entries.clear()
        self.size = self.acknowledged = 0


def log_bytes(entries: Iterable[OutboxEntry]) -> int:
    """The size of the entries in the log, in bytes."""
    return sum(len(entry.records) + ENTRY_OVERHEAD for entry in entries)


def append_commands(log: str, batch: Iterable[OutboxEntry]) -> list[Command]:
    """The commands that append `batch` to the stream with the key `log`."""
    return [
        ("XADD", log, f"{entry.seq}-0", *chain.from_iterable(pack_entry(entry.records, entry.check).items()))
        for entry in batch
    ]
