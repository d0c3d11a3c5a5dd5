"""Which chunks a slot is expected to hold, and until when. It keeps the books; the mirror's table is not touched here.

Contract: a chunk is expected of a slot until the time last said of it; `lapsed` hands out what was said by one decision
and is over, oldest first, without what was said anew since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

__all__ = ["Holds", "Pending"]

Holds = dict[int, float]  # chunk -> when it lapses
_NONE: Mapping[int, float] = {}


class Pending:
    """`count`: (chunk, slot) pairs; whoever removes from what `of` gave counts them off."""

    def __init__(self) -> None:
        self.count = 0
        self._holds: dict[int, Holds] = {}
        self._lapsing: list[tuple[float, int, int, tuple[int, ...]]] = []
        self._number = 0  # of decisions: equal times keep their order

    def of(self, slot: int) -> Holds:
        """To be read and changed by the mirror. Where nothing is expected, an empty one that is not kept."""
        return self._holds.get(slot) or {}

    def open(self, slot: int) -> Holds:
        """The same to add to."""
        return self._holds.setdefault(slot, {})

    def lapse_at(self, until: float, slot: int, chunks: Sequence[int]) -> None:
        """One decision's chunks, which are in `open(slot)` by now."""
        self._number += 1
        heappush(self._lapsing, (until, self._number, slot, tuple(chunks)))

    def due(self, now: float) -> bool:
        return bool(self._lapsing) and self._lapsing[0][0] <= now

    def lapsed(self) -> tuple[int, list[int]]:
        """The oldest decision's slot, and those of its chunks that end with it."""
        until, _, slot, chunks = heappop(self._lapsing)
        holds = self._holds.get(slot, _NONE)
        return slot, [chunk for chunk in chunks if holds.get(chunk) == until]

    def over(self, bound: int) -> bool:
        return self.count > bound and bool(self._lapsing)

    def end(self, slot: int, chunks: Iterable[int]) -> None:
        holds = self.of(slot)
        before = len(holds)
        for chunk in chunks:
            del holds[chunk]
        self.count -= before - len(holds)

    def forget(self, slot: int) -> None:
        self.count -= len(self._holds.pop(slot, ()))
