"""What is remembered of evicted blocks: a bounded table from block hash to a note, oldest note dropped first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Generic, TypeVar

__all__ = ["Ghosts"]

Note = TypeVar("Note")


class Ghosts(Generic[Note]):
    """capacity: blocks remembered. Blocks evicted together share one note; writing a block again makes it newest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._notes: dict[int, Note] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def __contains__(self, block: object) -> bool:
        return block in self._notes

    def remember(self, hashes: Sequence[int], note: Note) -> None:
        """Write `note` beside each block of `hashes`."""
        notes = self._notes
        for block in hashes:
            notes.pop(block, None)
        notes.update(dict.fromkeys(hashes[: self._capacity], note))
        surplus = len(notes) - self._capacity
        if surplus > 0:
            for block in list(islice(notes, surplus)):
                del notes[block]

    def get(self, block: int) -> Note | None:
        """What was noted of `block`; None when nothing is remembered."""
        return self._notes.get(block)

    def cuts(self, hashes: Sequence[int]) -> list[int]:
        """Lengths at which the note changes along the chain `hashes`, up to the first block without one."""
        notes = self._notes
        last = notes.get(hashes[0])
        if last is None:
            return []
        cuts: list[int] = []
        for index, block in enumerate(hashes):
            note = notes.get(block)
            if note != last:
                cuts.append(index)
                last = note
            if note is None:
                break
        return cuts

    def clear(self) -> None:
        """Forget everything."""
        self._notes.clear()
