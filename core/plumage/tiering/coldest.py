"""Residents of a tier, coldest first, without sorting them for every query.

It is a heap of the hotness at the last check. An entry at the top is checked again, and moves down if it has become
hotter. Hotness also falls, by ageing. A fall has no effect until the heap is built again, every `rebuild` queries.
Ageing subtracts the same step from every clock, so the order changes little in between.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["REBUILD", "ColdestFirst"]

REBUILD = 1024
Resident = TypeVar("Resident")


class ColdestFirst(Generic[Resident]):
    """hotness: returns the current hotness of a resident. A discarded resident may be added again.

    rebuild: queries between two rebuilds, which each visit all residents."""

    def __init__(self, hotness: Callable[[Resident], float], rebuild: int = REBUILD) -> None:
        self._hotness = hotness
        self._rebuild = rebuild
        self._heap: list[tuple[float, int, Resident]] = []
        self._live: dict[Resident, int] = {}  # serial of the valid heap entry
        self._serial = 0
        self._asked = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Resident]:
        """All residents, in the order they were added."""
        return iter(self._live)

    def newest(self) -> Iterator[Resident]:
        """All residents, the last one added first."""
        return reversed(self._live)

    def add(self, resident: Resident) -> None:
        self._push(self._hotness(resident), resident)

    def discard(self, resident: Resident) -> None:
        self._live.pop(resident, None)

    def ask(self, choose: Callable[[Iterator[Resident]], None]) -> None:
        """Let `choose` read residents from the coldest on, as far as it wants to. Reading removes none."""
        self._asked += 1
        if self._asked % self._rebuild == 0:
            self._heap = [(self._hotness(one), order, one) for order, one in enumerate(self._live)]
            self._live = {one: order for _, order, one in self._heap}
            heapq.heapify(self._heap)
            self._serial = len(self._heap)
        read: list[tuple[float, Resident]] = []
        choose(self._coldest(read))
        for hotness, resident in read:
            if resident in self._live:
                self._push(hotness, resident)

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def _coldest(self, read: list[tuple[float, Resident]]) -> Iterator[Resident]:
        heap = self._heap
        while heap:
            known, serial, resident = heapq.heappop(heap)
            if self._live.get(resident) != serial:
                continue
            hotness = self._hotness(resident)
            if hotness > known and heap and hotness > heap[0][0]:
                self._push(hotness, resident)
                continue
            read.append((hotness, resident))
            yield resident

    def _push(self, hotness: float, resident: Resident) -> None:
        self._serial += 1
        self._live[resident] = self._serial
        heapq.heappush(self._heap, (hotness, self._serial, resident))
