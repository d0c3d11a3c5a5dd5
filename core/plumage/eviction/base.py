"""Base classes of policies: one that ignores all events, and a heap of leaves by score."""

from __future__ import annotations

import heapq
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import StateError

__all__ = ["NO_VICTIM", "QuietPolicy", "ScoredPolicy"]

NO_VICTIM = "no evictable leaf: every cached block is in use; ask `evictable` before asking for a victim"


class QuietPolicy:
    """Ignores every event; a policy overrides what it needs."""

    at_once = sys.maxsize

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        return ()

    def insert(self, run: Run, now: float) -> None:
        return

    def access(self, run: Run, now: float) -> None:
        return

    def grow(self, run: Run, blocks: int, now: float) -> None:
        return

    def split(self, upper: Run, lower: Run) -> None:
        return

    def idle(self, run: Run) -> None:
        return

    def release(self, run: Run) -> None:
        return

    def hold(self, run: Run) -> None:
        return

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        return

    def need(self, blocks: int) -> None:
        return

    def clear(self) -> None:
        return


class ScoredPolicy(QuietPolicy, ABC):
    """Evicts the evictable leaf with the lowest `score`. Of equal scores, the leaf that became evictable first is
    chosen.

    A leaf that loses some of its blocks keeps its place, so it loses all before another leaf does. The heap is lazy: an
    entry is valid while `_current` has the same serial number for its run. So `hold` costs one dictionary operation.
    Invalid entries are removed when they outnumber the valid ones.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Run]] = []
        self._current: dict[Run, int] = {}
        self._serial = 0

    @property
    def leaves(self) -> int:
        """The number of evictable leaves."""
        return len(self._current)

    @abstractmethod
    def score(self, run: Run) -> float:
        """The leaf with the lowest score is evicted first. It must not change while the run is an evictable leaf,
        unless `rescore` is called."""

    def release(self, run: Run) -> None:
        self._serial += 1
        self._current[run] = self._serial
        heapq.heappush(self._heap, (self.score(run), self._serial, run))
        if len(self._heap) > 64 + 2 * len(self._current):
            self._sweep()

    def hold(self, run: Run) -> None:
        self._current.pop(run, None)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if not run.hashes:
            self._current.pop(run, None)

    def victim(self, now: float) -> Run:
        heap, current = self._heap, self._current
        while heap:
            _, serial, run = heap[0]
            if current.get(run) == serial:
                return run
            heapq.heappop(heap)
        raise StateError(NO_VICTIM)

    def rescore(self) -> None:
        """Compute all scores again after a change that affects every leaf, such as ageing."""
        self._heap = [(self.score(run), serial, run) for run, serial in self._current.items()]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._current.clear()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
