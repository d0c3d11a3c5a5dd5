"""Base classes of policies: one that ignores all events, and a heap of leaves by score."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from plumage.blocks.run import Name, Run
from plumage.eviction.leaf_heap import LeafHeap

__all__ = ["QuietPolicy", "ScoredPolicy"]


class QuietPolicy:
    """Ignores every event; a policy overrides what it needs."""

    at_once = sys.maxsize

    def recall(self, hashes: Sequence[Name]) -> Sequence[int]:
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

    def shrink(self, run: Run, evicted: Sequence[Name]) -> None:
        return

    def need(self, blocks: int) -> None:
        return

    def clear(self) -> None:
        return


class ScoredPolicy(QuietPolicy, ABC):
    """Evicts the evictable leaf with the lowest `score`. Of equal scores, the leaf that became evictable first is
    chosen. A leaf that loses some of its blocks keeps its place, so it loses all before another leaf does.
    """

    def __init__(self) -> None:
        self._leaves = LeafHeap()

    @property
    def leaves(self) -> int:
        """The number of evictable leaves."""
        return len(self._leaves)

    @abstractmethod
    def score(self, run: Run) -> float:
        """The leaf with the lowest score is evicted first. It must not change while the run is an evictable leaf,
        unless `rescore` is called."""

    def release(self, run: Run) -> None:
        self._leaves.join(run, self.score(run))

    def hold(self, run: Run) -> None:
        self._leaves.leave(run)

    def shrink(self, run: Run, evicted: Sequence[Name]) -> None:
        if not run.hashes:
            self._leaves.leave(run)

    def victim(self, now: float) -> Run:
        return self._leaves.first()

    def rescore(self) -> None:
        """Compute all scores again after a change that affects every leaf, such as ageing."""
        self._leaves.rescore(self.score)

    def clear(self) -> None:
        self._leaves.clear()
