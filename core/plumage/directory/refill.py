"""A snapshot on its way into a mirror, unseen until it is whole.

What the router itself expects of the slot goes on to be expected: it is carried into the snapshot's lane. After a log
could not be read for a while that may be hundreds of thousands of chunks, so it is done in pieces, and what the router
says of the slot in between is followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from plumage.directory.lanes import Lanes
from plumage.directory.pending import Pending
from plumage.directory.table import Change, Table
from plumage.errors import StateError

__all__ = ["PIECE", "Refill"]

PIECE = 1024  # expected chunks carried at a step: under a millisecond


class Refill:
    """One snapshot of a slot's replica, on its way into a mirror of `table`, `lanes` and `pending`: `add` pieces,
    `carry`, then `commit`; `abandon` where it can't be finished."""

    def __init__(self, slot: int, table: Table, lanes: Lanes, pending: Pending) -> None:
        self._slot = slot
        self._table, self._lanes, self._pending = table, lanes, pending
        self._lane = lanes.fill()
        self._open = True
        self._carried: set[int] = set()  # chunks that came into the lane by expectation
        self._left: list[int] | None = None  # those to be carried still, once carrying has begun

    def add(self, changes: Iterable[Change]) -> None:
        if not self._open:
            raise StateError("this refill was committed or abandoned; start another with mirror.refill(slot)")
        self._table.write(self._lane, changes)

    def carry(self) -> Iterator[None]:
        """Carry what is expected of the slot, a piece at a step, once all is added; until `commit`, which does what is
        left, no log of the slot may be applied."""
        if self._open:
            self._pending.carry(self._slot, self)
            self._left = list(self._pending.of(self._slot))
        while self._open and self._left:
            piece = self._left[-PIECE:]
            del self._left[-PIECE:]
            self._carry(piece)
            yield

    def commit(self, *, reborn: bool = False) -> None:
        """The slot holds what was added, and what is still expected of it; the cache of a `reborn` engine began empty,
        so what was expected of its former life has ended: nothing of it is to be carried."""
        if self._open:
            self._end()
            if reborn:
                self._pending.forget(self._slot)
            self._lanes.replace(self._slot, self._lane)
            self._carry(list(self._pending.of(self._slot)) if self._left is None else self._left)

    def abandon(self) -> None:
        """The slot keeps what it had."""
        if self._open:
            self._end()
            self._lanes.close(self._lane)

    def _end(self) -> None:
        self._open = False
        self._pending.carried(self._slot, self)

    def _carry(self, chunks: Iterable[int]) -> None:
        """Of these, what the snapshot confirms ends; the others are written into its lane."""
        holds = self._pending.of(self._slot)
        new, known = self._table.join(self._lane, [chunk for chunk in chunks if chunk in holds])
        self._carried.update(new)
        self._pending.end(self._slot, {chunk for chunk in known if chunk not in self._carried})

    # What the router says meanwhile

    def expect(self, chunks: Sequence[int]) -> None:
        if self._left is not None:
            self._left += chunks

    def release(self, chunks: Collection[int]) -> None:
        self._table.remove(self._lane, self._carried.intersection(chunks))
