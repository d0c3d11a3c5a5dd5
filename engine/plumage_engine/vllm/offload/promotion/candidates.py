"""Which host chunks might go up, and which device blocks might go for them: the nodes that a promotion plan is made of.

Looking at all of host memory for each plan would cost too much. A look goes over so many entries of it, the next ones
round and round, and over the hottest that earlier looks found; both bound what a plan costs the engine's step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice

from plumage.tiering import TierNode
from plumage_engine.vllm.offload.host_tier.residents import Entry, Residents, chunk_key
from plumage_engine.vllm.offload.promotion.device_blocks import Device

__all__ = ["Candidates", "Piece"]

Key = bytes
_LOOKED_AT = 64
_KEPT = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """keys: chunks to copy up, a chain `start` chunks below its root. above: the one before, in the device."""

    keys: tuple[Key, ...]
    above: Key | None
    start: int


class Candidates:
    """Over the residents of host memory and the blocks of the device."""

    def __init__(self, residents: Residents, device: Device) -> None:
        self._residents = residents
        self._device = device
        self._round: Iterator[Entry] = iter(())
        self._hot: list[Entry] = []

    def roots(self, chunks: int, busy: Collection[Key]) -> list[tuple[TierNode, Piece]]:
        """The hottest pieces whose chunk above is in the device, worth `chunks` or a little more. busy: not these. A
        chunk that left host memory and came back is in two entries; no two pieces have it."""
        found = [(heat, place, entry) for entry in self._look() for heat, place in self._first_missing(entry)]
        best = nlargest(_KEPT, found, key=lambda one: one[0])
        self._hot = [entry for _, _, entry in best]
        roots: list[tuple[TierNode, Piece]] = []
        taken: set[Key] = set()
        for _, place, entry in best:
            if chunks <= 0:
                break
            piece = self._piece(entry, place, chunks, lambda key: key in busy or key in taken)
            if piece.keys:
                roots.append((self._node(piece), piece))
                chunks -= len(piece.keys)
                taken.update(piece.keys)
        return roots

    def leaf(self, key: Key) -> TierNode:
        """A device block as a victim."""
        heats, name = self._residents.heats, chunk_key(key)
        return TierNode(name, None, heats.tokens, 0, heats.promotion(name))

    def _look(self) -> dict[Entry, None]:
        """Each entry once: the hottest known, then the next of the round."""
        live = [entry for entry in self._hot if entry.held]
        return dict.fromkeys([*live, *islice(self._next(), _LOOKED_AT)])

    def _next(self) -> Iterator[Entry]:
        fresh = False
        while True:
            entry = next(self._round, None)
            if entry is not None:
                if entry.held:
                    yield entry
            elif fresh:
                return
            else:
                self._round, fresh = iter(list(self._residents.newest())), True

    def _first_missing(self, entry: Entry) -> Iterator[tuple[float, int]]:
        """Hotness and place of the entry's first chunk that the device lacks; nothing if it can't go up now.

        A chain leaves the device from its end, so the place is found by halving; where that is not so the piece is
        merely not the best.
        """
        low, high = 0, len(entry.keys)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._device.holds(entry.keys[middle]) else (low, middle)
        above = entry.keys[low - 1] if low else entry.parent
        if low < len(entry.keys) and (above is None or self._device.holds(above)):
            yield self._residents.heats.promotion(chunk_key(entry.keys[low])), low

    def _piece(self, entry: Entry, place: int, chunks: int, is_busy: Callable[[Key], bool]) -> Piece:
        """From `place` on what is here, missing there and as hot: one node of the tree."""
        promotion = self._residents.heats.promotion
        hotness = promotion(chunk_key(entry.keys[place]))
        keys: list[Key] = []
        for key in entry.keys[place : place + chunks]:
            chunk = self._residents.get(key)
            if chunk is None or not chunk.is_ready or is_busy(key) or self._device.holds(key):
                break
            if promotion(chunk_key(key)) != hotness:
                break
            keys.append(key)
        return Piece(tuple(keys), entry.keys[place - 1] if place else entry.parent, entry.start + place)

    def _node(self, piece: Piece) -> TierNode:
        heats, name = self._residents.heats, chunk_key(piece.keys[-1])
        parent = None if piece.above is None else chunk_key(piece.above)
        return TierNode(name, parent, len(piece.keys) * heats.tokens, 0, heats.promotion(name))
