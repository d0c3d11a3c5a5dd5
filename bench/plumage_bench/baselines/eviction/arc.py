"""ARC among leaves.

Source: Megiddo and Modha, ARC: A Self-Tuning, Low Overhead Replacement Cache, FAST 2003, figure 4.

Runs that were used once are in one list, those that were used again in the other; both are ordered by recency. Evicted
blocks of each are remembered. A block that comes back shows that its list was too short, and moves the target size of
the first list by the ratio of what is remembered. Sizes are in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from plumage.blocks.run import Run
from plumage.errors import StateError
from plumage.eviction.base import QuietPolicy, ScoredPolicy
from plumage.eviction.leaf_heap import NO_VICTIM

__all__ = ["Arc"]

_ONCE, _AGAIN = 0, 1


class _ByUse(ScoredPolicy):
    def score(self, run: Run) -> float:
        return run.used


class Arc(QuietPolicy):
    """`rank` is the list that a run is in. `target`: the first list's size."""

    def __init__(self, capacity: int) -> None:
        self.target = 0.0
        self._capacity = capacity
        self._lists = (_ByUse(), _ByUse())
        self._blocks = [0, 0]
        self._evicted: tuple[dict[int, None], dict[int, None]] = ({}, {})

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        kinds = [self._kind(block) for block in hashes]
        if kinds[0] is None:
            return ()
        end = kinds.index(None) + 1 if None in kinds else len(kinds)
        return [at for at in range(1, end) if kinds[at] != kinds[at - 1]]

    def insert(self, run: Run, now: float) -> None:
        kind, blocks = self._kind(run.hashes[0]), len(run.hashes)
        once, again = self._evicted
        if kind is None:
            run.rank = _ONCE
        else:
            if kind == _ONCE:
                self.target = min(self._capacity, self.target + blocks * max(1.0, len(again) / len(once)))
            else:
                self.target = max(0.0, self.target - blocks * max(1.0, len(once) / len(again)))
            run.rank = _AGAIN
            run.fresh = False  # blocks that its request adds below are new
        for block in run.hashes:
            once.pop(block, None)
            again.pop(block, None)
        self._blocks[int(run.rank)] += blocks

    def access(self, run: Run, now: float) -> None:
        if run.rank == _ONCE:
            self._lists[_ONCE].hold(run)
            self._blocks[_ONCE] -= len(run.hashes)
            self._blocks[_AGAIN] += len(run.hashes)
            run.rank = _AGAIN

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._blocks[int(run.rank)] += blocks

    def release(self, run: Run) -> None:
        self._lists[int(run.rank)].release(run)

    def hold(self, run: Run) -> None:
        self._lists[int(run.rank)].hold(run)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        kind = int(run.rank)
        self._lists[kind].shrink(run, evicted)
        self._blocks[kind] -= len(evicted)
        self._evicted[kind].update(dict.fromkeys(evicted))
        # The first list and its memory are at most one cache, all four together at most two.
        _trim(self._evicted[_ONCE], self._capacity - self._blocks[_ONCE])
        _trim(self._evicted[_AGAIN], 2 * self._capacity - sum(self._blocks) - len(self._evicted[_ONCE]))

    def victim(self, now: float) -> Run:
        order = (_ONCE, _AGAIN) if self._blocks[_ONCE] > self.target else (_AGAIN, _ONCE)
        for kind in order:
            if self._lists[kind].leaves:
                return self._lists[kind].victim(now)
        raise StateError(NO_VICTIM)

    def clear(self) -> None:
        self.target = 0.0
        self._blocks = [0, 0]
        for kind in (_ONCE, _AGAIN):
            self._lists[kind].clear()
            self._evicted[kind].clear()

    def _kind(self, block: int) -> int | None:
        """The list from which the block was evicted; None if that is not remembered."""
        return next((kind for kind in (_ONCE, _AGAIN) if block in self._evicted[kind]), None)


def _trim(remembered: dict[int, None], most: int) -> None:
    """Forgets the oldest."""
    for block in list(islice(remembered, max(0, len(remembered) - max(0, most)))):
        del remembered[block]
