"""A snapshot that is being loaded into the mirror. It is invisible until it is complete.

Pending chunks of the slot stay pending: they are carried into the snapshot's bit. After an interruption of the log
these may be hundreds of thousands, so they are carried in steps. Changes that the router makes in between are included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from plumage.directory.mirror.owner_table import OwnerChange, OwnerTable
from plumage.directory.mirror.pending_owners import PendingOwners
from plumage.directory.mirror.slot_masks import SlotMasks
from plumage.errors import StateError

__all__ = ["PIECE", "StagedSnapshot"]

PIECE = 1024  # pending chunks carried per step: under a millisecond


class StagedSnapshot:
    """One snapshot of a slot's replica. Call `add` for each piece, then `carry`, then `commit`. Call `abandon` if it
    can't be completed."""

    def __init__(self, slot: int, table: OwnerTable, masks: SlotMasks, pending: PendingOwners) -> None:
        self._slot = slot
        self._table, self._masks, self._pending = table, masks, pending
        self._bit = masks.fill()
        self._open = True
        self._carried: set[int] = set()  # pending chunks that the bit was added to
        self._left: list[int] | None = None  # chunks that are still to be carried, once carrying has begun

    def add(self, changes: Iterable[OwnerChange]) -> None:
        if not self._open:
            raise StateError("this snapshot was committed or abandoned; start another with mirror.stage_snapshot(slot)")
        self._table.write(self._bit, changes)

    def carry(self) -> Iterator[None]:
        """Carry the pending chunks of the slot, a piece per step. Call it after the last `add`. `commit` carries the
        rest; until then no log of the slot may be applied."""
        if self._open:
            self._pending.carry(self._slot, self)
            self._left = list(self._pending.of(self._slot))
        while self._open and self._left:
            piece = self._left[-PIECE:]
            del self._left[-PIECE:]
            self._carry(piece)
            yield

    def commit(self, *, restarted: bool = False) -> None:
        """Give the slot the added chunks and its pending chunks. The cache of a `restarted` engine began empty: its
        pending chunks are removed."""
        if self._open:
            self._end()
            if restarted:
                self._pending.forget(self._slot)
            self._masks.replace(self._slot, self._bit)
            self._carry(list(self._pending.of(self._slot)) if self._left is None else self._left)

    def abandon(self) -> None:
        """Discard the snapshot; the slot keeps its old chunks."""
        if self._open:
            self._end()
            self._masks.close(self._bit)

    def _end(self) -> None:
        self._open = False
        self._pending.carried(self._slot, self)

    def _carry(self, chunks: Iterable[int]) -> None:
        """End the pending chunks that the snapshot confirms, and add its bit to the others."""
        holds = self._pending.of(self._slot)
        new, known = self._table.join(self._bit, [chunk for chunk in chunks if chunk in holds])
        self._carried.update(new)
        self._pending.end(self._slot, {chunk for chunk in known if chunk not in self._carried})

    # Changes of the router in between

    def expect(self, chunks: Sequence[int]) -> None:
        if self._left is not None:
            self._left += chunks

    def release(self, chunks: Collection[int]) -> None:
        self._table.remove(self._bit, self._carried.intersection(chunks))
