"""Pending owners: which chunks a slot is expected to hold, and until when.

It keeps the deadlines only; the mirror's table is not changed here. The last deadline of a chunk counts. `pop_expired`
returns the chunks of the oldest expired decision, without those that a later decision renewed. A `Carrier` learns of
the changes while it carries pending chunks of a slot into a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

__all__ = ["NO_HOLDS", "Carrier", "Holds", "PendingOwners"]

Holds = dict[int, float]  # chunk → its deadline
NO_HOLDS: Final[Holds] = {}  # always empty


class Carrier(Protocol):
    """Carries the pending chunks of one slot into a snapshot."""

    def expect(self, chunks: Sequence[int]) -> None:
        """Counts these as pending."""

    def release(self, chunks: Collection[int]) -> None:
        """Counts these as no longer pending."""

    def abandon(self) -> None:
        """Drops all of a removed slot."""


class PendingOwners:
    """`count`: (chunk, slot) pairs. Code that changes the result of `of` or `open` updates it."""

    def __init__(self) -> None:
        self.count = 0
        self._holds: dict[int, Holds] = {}
        self._deadlines: list[tuple[float, int, int, tuple[int, ...]]] = []
        self._number = 0  # of decisions: equal deadlines keep their order
        self._carriers: dict[int, Carrier] = {}

    def of(self, slot: int) -> Holds:
        """The pending chunks, to read and to remove from. An empty one is replaced by a small constant: Python's
        look-up in a dictionary that was full before costs as much as then."""
        return self._holds.get(slot) or NO_HOLDS

    def open(self, slot: int) -> Holds:
        """The same, to add to."""
        holds = self._holds.get(slot)
        if holds is None:
            holds = self._holds[slot] = {}
        return holds

    def expire_at(self, until: float, slot: int, chunks: Sequence[int]) -> None:
        """Add the deadline of one decision. Its chunks are in `open(slot)` already."""
        self._number += 1
        heappush(self._deadlines, (until, self._number, slot, tuple(chunks)))
        if slot in self._carriers:
            self._carriers[slot].expect(chunks)

    def due(self, now: float) -> bool:
        return bool(self._deadlines) and self._deadlines[0][0] <= now

    def pop_expired(self) -> tuple[int, list[int]]:
        """The slot of the oldest decision, and its chunks that were not renewed."""
        until, _, slot, chunks = heappop(self._deadlines)
        holds = self.of(slot)
        return slot, [chunk for chunk in chunks if holds.get(chunk) == until]

    def over(self, bound: int) -> bool:
        return self.count > bound and bool(self._deadlines)

    def end(self, slot: int, chunks: Collection[int]) -> None:
        """End these pending chunks; each of them must be pending."""
        holds = self.of(slot)
        for chunk in chunks:
            del holds[chunk]
        self.count -= len(chunks)
        if slot in self._carriers:
            self._carriers[slot].release(chunks)

    def forget(self, slot: int) -> None:
        """Remove all pending chunks of the slot, and abandon its carrier."""
        self.count -= len(self._holds.pop(slot, ()))
        if slot in self._carriers:
            self._carriers[slot].abandon()

    # Carriers

    def carry(self, slot: int, carrier: Carrier) -> None:
        """Inform `carrier` of changes from now on, in place of an earlier one."""
        self._carriers[slot] = carrier

    def carried(self, slot: int, carrier: Carrier) -> None:
        """Stop informing `carrier`."""
        if self._carriers.get(slot) is carrier:
            del self._carriers[slot]
