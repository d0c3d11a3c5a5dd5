"""Which chunks a slot is expected to hold, and until when. It keeps the books; the mirror's table is not touched here.

Contract: a chunk is expected of a slot until the time last said of it; `lapsed` hands out what was said by one decision
and is over, oldest first, without what was said anew since. Whoever takes what is expected of a slot along to another
place is told of what comes and goes meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

__all__ = ["NO_HOLDS", "Carrier", "Holds", "Pending"]

Holds = dict[int, float]  # chunk -> when it lapses
NO_HOLDS: Final[Holds] = {}  # nobody adds to it


class Carrier(Protocol):
    """Takes along what is expected of one slot."""

    def expect(self, chunks: Sequence[int]) -> None:
        """These are expected too."""

    def release(self, chunks: Collection[int]) -> None:
        """These are not expected any more."""

    def abandon(self) -> None:
        """Nothing is any more: the slot was forgotten."""


class Pending:
    """`count`: (chunk, slot) pairs; whoever changes what `of` or `open` gave counts them."""

    def __init__(self) -> None:
        self.count = 0
        self._holds: dict[int, Holds] = {}
        self._lapsing: list[tuple[float, int, int, tuple[int, ...]]] = []
        self._number = 0  # of decisions: equal times keep their order
        self._carriers: dict[int, Carrier] = {}

    def of(self, slot: int) -> Holds:
        """To be read, and to remove from. Where nothing is expected, a small one: looking into a dictionary that was
        emptied costs as if it were full."""
        return self._holds.get(slot) or NO_HOLDS

    def open(self, slot: int) -> Holds:
        """The same to add to."""
        holds = self._holds.get(slot)
        if holds is None:
            holds = self._holds[slot] = {}
        return holds

    def lapse_at(self, until: float, slot: int, chunks: Sequence[int]) -> None:
        """One decision's chunks, which are in `open(slot)` by now."""
        self._number += 1
        heappush(self._lapsing, (until, self._number, slot, tuple(chunks)))
        if slot in self._carriers:
            self._carriers[slot].expect(chunks)

    def due(self, now: float) -> bool:
        return bool(self._lapsing) and self._lapsing[0][0] <= now

    def lapsed(self) -> tuple[int, list[int]]:
        """The oldest decision's slot, and those of its chunks that end with it."""
        until, _, slot, chunks = heappop(self._lapsing)
        holds = self.of(slot)
        return slot, [chunk for chunk in chunks if holds.get(chunk) == until]

    def over(self, bound: int) -> bool:
        return self.count > bound and bool(self._lapsing)

    def end(self, slot: int, chunks: Collection[int]) -> None:
        """These, each of which is expected, are not any more."""
        holds = self.of(slot)
        for chunk in chunks:
            del holds[chunk]
        self.count -= len(chunks)
        if slot in self._carriers:
            self._carriers[slot].release(chunks)

    def forget(self, slot: int) -> None:
        """Nothing is expected of the slot any more, and there is nothing to take along."""
        self.count -= len(self._holds.pop(slot, ()))
        if slot in self._carriers:
            self._carriers[slot].abandon()

    # Taking along

    def carry(self, slot: int, carrier: Carrier) -> None:
        """From now on `carrier` is told; it takes the place of another."""
        self._carriers[slot] = carrier

    def carried(self, slot: int, carrier: Carrier) -> None:
        """It need not be told any more."""
        if self._carriers.get(slot) is carrier:
            del self._carriers[slot]
