"""Finds host chunks worth promoting and device blocks that may be evicted for them: the nodes of a promotion plan.

Scanning all of host memory for each plan would cost too much. A search examines a fixed number of entries, the next
ones in turn, and the hottest that earlier searches found. Both bound the cost of a plan for the engine's step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice

from plumage.tiering import TierNode
from plumage_engine.vllm.offload.host_tier.residents import Entry, Residents, chunk_key
from plumage_engine.vllm.offload.promotion.device_blocks import DeviceBlocks

__all__ = ["Candidates", "Piece"]

Key = bytes
_MAX_EXAMINED = 64
_KEPT = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """keys: chunks to copy, a chain `start` chunks below its root.
    above: the chunk before them, which is on the device.
    """

    keys: tuple[Key, ...]
    above: Key | None
    start: int


class Candidates:
    """Over the residents of host memory and the blocks of the device."""

    def __init__(self, residents: Residents, device: DeviceBlocks) -> None:
        self._residents = residents
        self._device = device
        self._round: Iterator[Entry] = iter(())
        self._hot: list[Entry] = []

    def roots(self, chunks: int, busy: Collection[Key]) -> list[tuple[TierNode, Piece]]:
        """The hottest pieces whose parent is on the device, `chunks` or slightly more in all.

        busy: excluded chunks. A chunk that was evicted and stored again is in two entries; no two pieces contain it.
        """
        found = [(hotness, place, entry) for entry in self._look() for hotness, place in self._first_missing(entry)]
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
        hotness, name = self._residents.hotness, chunk_key(key)
        return TierNode(name, None, hotness.tokens, 0, hotness.promotion(name))

    def _look(self) -> dict[Entry, None]:
        """Each entry once: the hottest known, then the next in turn."""
        live = [entry for entry in self._hot if entry.held]
        return dict.fromkeys([*live, *islice(self._next(), _MAX_EXAMINED)])

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
        """Hotness and place of the entry's first chunk that the device lacks; nothing where it can't be promoted now.

        The device evicts a chain from its end, so binary search finds the place; otherwise the piece is only not the
        best.
        """
        low, high = 0, len(entry.keys)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._device.holds(entry.keys[middle]) else (low, middle)
        above = entry.keys[low - 1] if low else entry.parent
        if low < len(entry.keys) and (above is None or self._device.holds(above)):
            yield self._residents.hotness.promotion(chunk_key(entry.keys[low])), low

    def _piece(self, entry: Entry, place: int, chunks: int, is_busy: Callable[[Key], bool]) -> Piece:
        """From `place` on, the chunks that are here, missing there and equally hot: one node of the tree."""
        promotion = self._residents.hotness.promotion
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
        hotness, name = self._residents.hotness, chunk_key(piece.keys[-1])
        parent = None if piece.above is None else chunk_key(piece.above)
        return TierNode(name, parent, len(piece.keys) * hotness.tokens, 0, hotness.promotion(name))
