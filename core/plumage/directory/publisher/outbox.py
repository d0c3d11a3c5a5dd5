"""Log entries on their way to the server: what a writer has made and the server has not taken yet.

Contract: entries are numbered without holes, and they go on where they are when all is written anew; each has its
number as its id, so that the server refuses what it is sent twice. How much waits is bounded by the writer, which
starts over when it is `full`. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from plumage.directory.client.redis_pipeline import Command
from plumage.directory.schema import pack_entry

__all__ = ["ENTRIES_AT_ONCE", "Entry", "Outbox", "appending", "weight"]

OUTBOX_BYTES = 4 << 20  # beyond it a whole snapshot is cheaper than the changes
ENTRIES_AT_ONCE = 256
ENTRY_OVERHEAD = 24  # bytes of a stream entry beside its records


class Entry(NamedTuple):
    seq: int
    records: bytes
    check: tuple[int, int] | None  # count and digest after it


class Outbox:
    """`made`: number of the last entry. `taken`: of the last one that the server has, 0 where it has none of this
    epoch. `marked`: of the last one with a check mark. `size`: of what waits, in bytes; its length is in entries."""

    def __init__(self) -> None:
        self.made = self.taken = self.marked = 0
        self.size = 0
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return self.size > OUTBOX_BYTES

    def put(self, records: bytes, check: tuple[int, int] | None = None) -> None:
        """One entry more. `check`: count and digest after it, as a mark."""
        self.made += 1
        self._entries.append(Entry(self.made, records, check))
        self.size += len(records) + ENTRY_OVERHEAD
        if check is not None:
            self.marked = self.made

    def batch(self) -> list[Entry]:
        """The oldest that wait, as many as go at once."""
        return list(islice(self._entries, ENTRIES_AT_ONCE))

    def sent(self, batch: Sequence[Entry]) -> None:
        """The server has taken the oldest, which are these."""
        for _ in batch:
            self._entries.popleft()
        self.size -= weight(batch)
        self.taken = batch[-1].seq

    def clear(self) -> None:
        """All is written anew: nothing waits, and of the new epoch nothing is taken."""
        self._entries.clear()
        self.size = self.taken = 0


def weight(entries: Iterable[Entry]) -> int:
    """Bytes of the log that they take."""
    return sum(len(entry.records) + ENTRY_OVERHEAD for entry in entries)


def appending(log: str, batch: Iterable[Entry]) -> list[Command]:
    """What appends them to the log."""
    return [
        ("XADD", log, f"{entry.seq}-0", *chain.from_iterable(pack_entry(entry.records, entry.check).items()))
        for entry in batch
    ]
