"""Which bit of a table's entries stands for which slot.

A bit is a *lane*, not a slot. A snapshot is filled into a fresh lane and takes the slot over when it is whole; a lane
that lost its slot is invisible at once and is wiped out of the table later; then it may be used again. A lane is named
by its bit here, as it stands in an entry of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress

from plumage.directory.table import TOKEN_BITS

__all__ = ["Lanes"]

EXPANSIONS = 4096  # masks whose slots are kept expanded

_SET = bytes(byte == ord("1") for byte in range(256))  # digits of a mask to false and true


class Lanes:
    """`of`: slot → its lane. `alive`: all lanes that have a slot. `dead`: those that lost it and are not wiped yet.
    `expanded`: what `expand` said lately, by its argument. `lost` is called whenever a slot loses its lane."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.of: dict[int, int] = {}
        self.alive = 0
        self.dead = 0
        self.expanded: dict[int, tuple[int, ...]] = {}
        self._lost = lost
        self._slots: list[int] = []  # of each lane; of a closed one, the last
        self._filling = 0  # lanes of snapshots that are not whole yet

    def expand(self, lanes: int) -> tuple[int, ...]:
        """The slots of a mask of lanes; the same few masks come again and again."""
        slots = self.expanded.get(lanes)
        if slots is None:
            if len(self.expanded) >= EXPANSIONS:
                self.expanded.clear()
            flags = bin(lanes >> TOKEN_BITS)[:1:-1].encode()
            slots = tuple(compress(self._slots, flags.translate(_SET)))
            self.expanded[lanes] = slots
        return slots

    def open(self, slot: int) -> int:
        """A lane for a slot that has none."""
        lane = self._free()
        self._give(lane, slot)
        return lane

    def fill(self) -> int:
        """A lane for a snapshot: invisible until `replace`."""
        lane = self._free()
        self._filling |= lane
        return lane

    def replace(self, slot: int, lane: int) -> None:
        """The lane of a snapshot is whole: the slot is read from it."""
        old = self.of.get(slot)
        if old is not None:
            self.close(old)
        self._filling &= ~lane
        self._give(lane, slot)

    def forget(self, slot: int) -> None:
        lane = self.of.pop(slot, None)
        if lane is not None:
            self.close(lane)

    def close(self, lane: int) -> None:
        """Nobody reads or fills it any more."""
        self._lost()
        self.alive &= ~lane
        self._filling &= ~lane
        self.dead |= lane
        self.expanded.clear()

    def wiped(self, lanes: int) -> None:
        """These are in no entry of the table any more."""
        self.dead &= ~lanes

    def _free(self) -> int:
        free = ~(self.alive | self._filling | self.dead) >> TOKEN_BITS << TOKEN_BITS
        return free & -free

    def _give(self, lane: int, slot: int) -> None:
        self.of[slot] = lane
        number = lane.bit_length() - 1 - TOKEN_BITS
        self._slots += [slot] * (number + 1 - len(self._slots))
        self._slots[number] = slot
        self.alive |= lane
        self.expanded.clear()
