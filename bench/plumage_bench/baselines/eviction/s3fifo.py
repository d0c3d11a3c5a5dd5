"""S3-FIFO among leaves.

Source: Yang et al., FIFO Queues are All You Need for Cache Eviction, SOSP 2023, algorithm 1.

A new run waits in a small FIFO with a tenth of the cache. A run that was used twice or more there goes on to the main
FIFO, any other is evicted and remembered. A remembered run that is used again enters the main FIFO at once. There a run
that was used goes round again, with one use less.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError, StateError
from plumage.eviction.base import QuietPolicy, ScoredPolicy
from plumage.eviction.ghosts import Ghosts
from plumage.eviction.leaf_heap import NO_VICTIM

__all__ = ["S3Fifo"]

_MOST_USES = 3.0


class _Queue(ScoredPolicy):
    """A FIFO of runs, of which leaves can be taken. `blocks`: of all its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = 0
        self._places: dict[Run, int] = {}
        self._next = 0

    def __contains__(self, run: object) -> bool:
        return run in self._places

    def enter(self, run: Run) -> None:
        """The run is the queue's newest."""
        if run not in self._places:
            self.blocks += len(run.hashes)
        self._next += 1
        self._places[run] = self._next

    def leave(self, run: Run) -> None:
        self.hold(run)
        if self._places.pop(run, None) is not None:
            self.blocks -= len(run.hashes)

    def cut(self, upper: Run, lower: Run) -> None:
        """Both parts of a run keep its place."""
        self._places[upper] = self._places[lower]

    def score(self, run: Run) -> float:
        return self._places[run]

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        self.blocks -= len(evicted)
        if not run.hashes:
            self.leave(run)

    def clear(self) -> None:
        super().clear()
        self._places.clear()
        self.blocks = 0


class S3Fifo(QuietPolicy):
    """`rank` counts a run's uses in its queue, up to three. small_share: the small FIFO's part of the cache."""

    def __init__(self, capacity: int, small_share: float = 0.1) -> None:
        if not 0 < small_share < 1:
            raise ConfigurationError(f"S3-FIFO needs small_share between 0 and 1, got {small_share!r}")
        self._limit = capacity * small_share
        self._remembered: Ghosts[int] = Ghosts(int(capacity * (1 - small_share)))
        self._small, self._main = _Queue(), _Queue()

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        return self._remembered.cuts(hashes)

    def insert(self, run: Run, now: float) -> None:
        run.rank = 0.0
        if run.hashes[0] in self._remembered:
            self._main.enter(run)
            run.fresh = False  # blocks that its request adds below are new, and must wait in the small FIFO
        else:
            self._small.enter(run)

    def access(self, run: Run, now: float) -> None:
        run.rank = min(run.rank + 1.0, _MOST_USES)

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._of(run).blocks += blocks

    def split(self, upper: Run, lower: Run) -> None:
        self._of(lower).cut(upper, lower)

    def release(self, run: Run) -> None:
        self._of(run).release(run)

    def hold(self, run: Run) -> None:
        self._of(run).hold(run)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        queue = self._of(run)
        if queue is self._small:
            self._remembered.remember(evicted, 1)
        queue.shrink(run, evicted)

    def victim(self, now: float) -> Run:
        small, main = self._small, self._main
        while small.leaves or main.leaves:
            if small.leaves and (small.blocks >= self._limit or not main.leaves):
                run = small.victim(now)
                if run.rank < 2.0:
                    return run
                small.leave(run)
                run.rank = 0.0
            else:
                run = main.victim(now)
                if run.rank < 1.0:
                    return run
                main.leave(run)
                run.rank -= 1.0
            main.enter(run)
            main.release(run)
        raise StateError(NO_VICTIM)

    def clear(self) -> None:
        self._small.clear()
        self._main.clear()
        self._remembered.clear()

    def _of(self, run: Run) -> _Queue:
        return self._small if run in self._small else self._main
