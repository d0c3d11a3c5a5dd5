"""2Q, full version, among leaves.

Source: Johnson and Shasha, 2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm, VLDB 1994.

A new run waits in a FIFO (`in`). Runs that leave it are remembered. A remembered run that is used again enters the
long-term queue, which is ordered by recency. Sizes are the authors': a quarter of the cache for the FIFO, and a memory
for half of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError, StateError
from plumage.eviction.base import QuietPolicy, ScoredPolicy
from plumage.eviction.ghosts import Ghosts
from plumage.eviction.leaf_heap import NO_VICTIM
from plumage_bench.baselines.eviction.classic import Fifo

__all__ = ["TwoQ"]

_IN, _MAIN = 0.0, 1.0


class _ByUse(ScoredPolicy):
    def score(self, run: Run) -> float:
        return run.used


class TwoQ(QuietPolicy):
    """`rank` is the queue that a run is in; `_in_blocks` counts the FIFO's blocks, in use or not."""

    def __init__(self, capacity: int, fifo_share: float = 0.25, memory_share: float = 0.5) -> None:
        if not 0 < fifo_share < 1 or memory_share <= 0:
            raise ConfigurationError("2Q needs fifo_share between 0 and 1, and memory_share above 0")
        self._in_limit = capacity * fifo_share
        self._in_blocks = 0
        self._remembered: Ghosts[int] = Ghosts(int(capacity * memory_share))
        self._in = Fifo()
        self._main = _ByUse()

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        return self._remembered.cuts(hashes)

    def insert(self, run: Run, now: float) -> None:
        run.rank = _MAIN if run.hashes[0] in self._remembered else _IN
        if run.rank == _IN:
            self._in_blocks += len(run.hashes)
        else:
            run.fresh = False  # blocks that its request adds below are new, and must wait in the FIFO

    def grow(self, run: Run, blocks: int, now: float) -> None:
        if run.rank == _IN:
            self._in_blocks += blocks

    def release(self, run: Run) -> None:
        self._queue(run).release(run)

    def hold(self, run: Run) -> None:
        self._queue(run).hold(run)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        self._queue(run).shrink(run, evicted)
        if run.rank == _IN:
            self._in_blocks -= len(evicted)
            self._remembered.remember(evicted, 1)

    def victim(self, now: float) -> Run:
        first, second = (self._in, self._main) if self._in_blocks > self._in_limit else (self._main, self._in)
        if first.leaves:
            return first.victim(now)
        if second.leaves:
            return second.victim(now)
        raise StateError(NO_VICTIM)

    def clear(self) -> None:
        self._in.clear()
        self._main.clear()
        self._remembered.clear()
        self._in_blocks = 0

    def _queue(self, run: Run) -> ScoredPolicy:
        return self._main if run.rank == _MAIN else self._in
