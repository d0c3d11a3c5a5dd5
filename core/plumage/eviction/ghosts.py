"""Notes about evicted blocks: a bounded table from block hash to a note, which drops the oldest note first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from plumage.blocks.run import Name
from plumage.front import Front

__all__ = ["Ghosts"]

Note = TypeVar("Note")


class Ghosts(Generic[Note]):
    """capacity: number of blocks with a note. Blocks that are evicted together share one note. A new note makes a block
    the newest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._notes: dict[Name, Note] = {}
        self._front = Front(self._notes, self._capacity)

    def __len__(self) -> int:
        return len(self._notes)

    def __contains__(self, block: object) -> bool:
        return block in self._notes

    def remember(self, hashes: Sequence[Name], note: Note) -> None:
        """Store `note` for each block of `hashes`."""
        notes, front = self._notes, self._front
        for block in hashes:
            if block in notes:
                del notes[block]
                front.left(block)
        if len(hashes) == 1:
            notes[hashes[0]] = note
        else:
            notes.update(dict.fromkeys(hashes[: self._capacity], note))
        for _ in range(len(notes) - self._capacity):
            front.drop()

    def get(self, block: Name) -> Note | None:
        """The note about `block`, or None."""
        return self._notes.get(block)

    def cuts(self, hashes: Sequence[Name]) -> list[int]:
        """The lengths at which the note changes along the chain `hashes`, up to the first block without a note."""
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
        """Remove all notes."""
        self._notes.clear()
        self._front = Front(self._notes, self._capacity)
