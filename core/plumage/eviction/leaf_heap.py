"""The evictable leaves in the order of their scores: a lazy heap.

An entry is valid while `_current` has the same serial number for its run. So to leave costs one dictionary operation.
Invalid entries are removed when they outnumber the valid ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from plumage.blocks.run import Run
from plumage.errors import StateError

__all__ = ["NO_VICTIM", "LeafHeap"]

NO_VICTIM = "no evictable leaf: every cached block is in use; ask `evictable` before asking for a victim"


class LeafHeap:
    """The leaf with the lowest score is first; of equal scores, the one that joined first."""

    __slots__ = ("_current", "_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Run]] = []
        self._current: dict[Run, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._current)

    def join(self, run: Run, score: float) -> None:
        """The run became an evictable leaf. The score must not change until it leaves, unless `rescore` is called."""
        self._serial += 1
        self._current[run] = self._serial
        heapq.heappush(self._heap, (score, self._serial, run))
        if len(self._heap) > 64 + 2 * len(self._current):
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def leave(self, run: Run) -> None:
        """The run is no evictable leaf any more; one that is none is ignored."""
        self._current.pop(run, None)

    def first(self) -> Run:
        """The leaf with the lowest score. StateError if there is none."""
        heap, current = self._heap, self._current
        while heap:
            entry = heap[0]
            if current.get(entry[2]) == entry[1]:
                return entry[2]
            heapq.heappop(heap)
        raise StateError(NO_VICTIM)

    def rescore(self, score: Callable[[Run], float]) -> None:
        """Compute all scores again."""
        self._heap = [(score(run), serial, run) for run, serial in self._current.items()]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._current.clear()
