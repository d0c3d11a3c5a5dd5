"""A snapshot on its way into a mirror, unseen until it is whole.

What the router itself expects of the slot goes on to be expected: it is carried into the snapshot's lane. After a log
could not be read for a while that may be hundreds of thousands of chunks, so it is done in pieces, and what the router
says of the slot in between is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from plumage.directory.strides import KEY, SHIFT
from plumage.errors import StateError

if TYPE_CHECKING:
    from plumage.directory.mirror import Change, Mirror

__all__ = ["Refill"]

PIECE = 1024  # expected chunks carried at a step: under a millisecond


class Refill:
    """One snapshot on its way into a mirror: `add` pieces, `carry`, then `commit`; `abandon` where it can't be
    finished. `bit`: the snapshot's lane in an entry of the table."""

    def __init__(self, mirror: Mirror, slot: int, lane: int, bit: int) -> None:
        self._mirror, self._slot, self._lane, self._bit = mirror, slot, lane, bit
        self._open = True
        self._carried: set[int] | None = None  # chunks that stand in the lane by expectation, once carrying has begun
        self._late: list[int] = []  # what was expected after that

    def add(self, changes: Iterable[Change]) -> None:
        if not self._open:
            raise StateError("this refill was committed or abandoned; start another with mirror.refill(slot)")
        self._mirror._write(self._lane, changes)

    def carry(self) -> Iterator[None]:
        """Carry what is expected of the slot, a piece at a step, once all is added; until `commit`, which does what is
        left, no log of the slot may be applied."""
        self._carried = set()
        self._mirror._carrying[self._slot] = self
        holds = list(self._mirror._pending.of(self._slot))
        for first in range(0, len(holds), PIECE):
            if not self._open:
                return
            self._carry(holds[first : first + PIECE])
            yield

    def expect(self, chunks: Sequence[int]) -> None:
        """The router expects these too, since carrying has begun."""
        self._late += chunks

    def release(self, chunks: Iterable[int]) -> None:
        """The router does not expect these any more."""
        if self._carried is not None:
            ended = self._carried.intersection(chunks)
            self._carried -= ended
            self._mirror._write(self._lane, [(chunk, 0, 0) for chunk in ended])

    def commit(self, *, reborn: bool = False) -> None:
        """The slot holds what was added, and what is still expected of it; the cache of a `reborn` engine began empty,
        so what was expected of its former life has ended: nothing of it is to be carried."""
        if self._open:
            self._end()
            self._mirror._replace(self._slot, self._lane, reborn)
            self._carry(list(self._mirror._pending.of(self._slot)) if self._carried is None else self._late)

    def abandon(self) -> None:
        if self._open:
            self._end()
            self._mirror._close(self._lane)

    def _end(self) -> None:
        self._open = False
        if self._mirror._carrying.get(self._slot) is self:
            del self._mirror._carrying[self._slot]

    def _carry(self, chunks: Iterable[int]) -> None:
        """Of these, what the snapshot confirms ends; the others are written into its lane."""
        mirror, bit = self._mirror, self._bit
        carried = set() if self._carried is None else self._carried
        holds, confirmed = mirror._pending.of(self._slot), []
        for chunk in chunks:
            if chunk not in holds or chunk in carried:
                continue
            shard, key = mirror._shards[chunk >> SHIFT], chunk & KEY
            value = shard.get(key, 0)
            if value & bit:
                confirmed.append(chunk)
            elif value:
                shard[key] = value | bit
                carried.add(chunk)
                mirror._strides.changed((key,))
        mirror._pending.end(self._slot, dict.fromkeys(confirmed))
