"""The bits of slots in the entries of the owner table.

An entry has a mask with one bit per owner. A bit is not a slot number. A snapshot is written under a fresh bit, which
gets the slot when the snapshot is complete. A bit that lost its slot is invisible at once. It is wiped from the table
later and can then be used again. `bit` is always the mask with that one bit set, as in an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress

from plumage.directory.mirror.owner_table import TOKEN_BITS

__all__ = ["SlotMasks"]

EXPANSIONS = 4096  # masks whose slots are kept expanded

_SET = bytes(byte == ord("1") for byte in range(256))  # maps the digits of a mask to false and true


class SlotMasks:
    """`of`: slot → its bit. `alive`: mask of the bits that have a slot. `dead`: mask of the bits that are not wiped
    yet. `expanded`: cached results of `expand`, by its argument. `lost` is called when a slot loses its bit."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.of: dict[int, int] = {}
        self.alive = 0
        self.dead = 0
        self.expanded: dict[int, tuple[int, ...]] = {}
        self._lost = lost
        self._slots: list[int] = []  # of each bit; a closed bit keeps its last slot
        self._filling = 0  # bits of incomplete snapshots

    def expand(self, bits: int) -> tuple[int, ...]:
        """The slots of a mask. Results are cached, because few different masks occur."""
        slots = self.expanded.get(bits)
        if slots is None:
            if len(self.expanded) >= EXPANSIONS:
                self.expanded.clear()
            flags = bin(bits >> TOKEN_BITS)[:1:-1].encode()
            slots = tuple(compress(self._slots, flags.translate(_SET)))
            self.expanded[bits] = slots
        return slots

    def open(self, slot: int) -> int:
        """A bit for a slot that has none."""
        bit = self._free()
        self._give(bit, slot)
        return bit

    def fill(self) -> int:
        """A bit for a snapshot. It is invisible until `replace`."""
        bit = self._free()
        self._filling |= bit
        return bit

    def replace(self, slot: int, bit: int) -> None:
        """Give the slot the bit of its complete snapshot."""
        old = self.of.get(slot)
        if old is not None:
            self.close(old)
        self._filling &= ~bit
        self._give(bit, slot)

    def forget(self, slot: int) -> None:
        bit = self.of.pop(slot, None)
        if bit is not None:
            self.close(bit)

    def close(self, bit: int) -> None:
        """End the use of a bit: it is invisible and waits to be wiped."""
        self._lost()
        self.alive &= ~bit
        self._filling &= ~bit
        self.dead |= bit
        self.expanded.clear()

    def wiped(self, bits: int) -> None:
        """Free these bits: no entry of the table has them."""
        self.dead &= ~bits

    def _free(self) -> int:
        free = ~(self.alive | self._filling | self.dead) >> TOKEN_BITS << TOKEN_BITS
        return free & -free

    def _give(self, bit: int, slot: int) -> None:
        self.of[slot] = bit
        number = bit.bit_length() - 1 - TOKEN_BITS
        self._slots += [slot] * (number + 1 - len(self._slots))
        self._slots[number] = slot
        self.alive |= bit
        self.expanded.clear()
