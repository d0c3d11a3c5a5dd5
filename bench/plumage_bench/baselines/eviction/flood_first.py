"""Eviction by hotness that knows which tenant's blocks nobody uses again: the least that a flood can cost others' hits
by what is evicted. What they still lose goes to the blocks of running requests, and to other replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plumage.blocks.run import Name, Run
from plumage.eviction.hotness_formula import Hotness
from plumage.eviction.leaf_heap import LeafHeap

__all__ = ["FLOOD", "FloodFirst"]

FLOOD: Final = "flood"
"""The salt of that tenant's requests."""


class FloodFirst:
    """Not a policy for use: it is given what no cache can know. Hotness orders all runs of other tenants."""

    def __init__(self, capacity: int) -> None:
        self._hotness = Hotness(capacity)
        self._flood = LeafHeap()
        self.at_once = self._hotness.at_once

    def recall(self, hashes: Sequence[Name]) -> Sequence[int]:
        return self._hotness.recall(hashes)

    def insert(self, run: Run, now: float) -> None:
        self._hotness.insert(run, now)

    def access(self, run: Run, now: float) -> None:
        self._hotness.access(run, now)

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._hotness.grow(run, blocks, now)

    def split(self, upper: Run, lower: Run) -> None:
        self._hotness.split(upper, lower)

    def idle(self, run: Run) -> None:
        self._hotness.idle(run)

    def need(self, blocks: int) -> None:
        self._hotness.need(blocks)

    def release(self, run: Run) -> None:
        self._hotness.release(run)
        if run.owner == FLOOD:
            self._flood.join(run, 0.0)

    def hold(self, run: Run) -> None:
        self._hotness.hold(run)
        self._flood.leave(run)

    def shrink(self, run: Run, evicted: Sequence[Name]) -> None:
        self._hotness.shrink(run, evicted)
        if not run.hashes:
            self._flood.leave(run)

    def victim(self, now: float) -> Run:
        return self._flood.first() if len(self._flood) else self._hotness.victim(now)

    def clear(self) -> None:
        self._hotness.clear()
        self._flood.clear()
