"""Leaf-OPT: evict the leaf with the latest next use (KVRouting §3.2). It needs the future requests.

It is a bound, not a usable policy. It evicts single blocks, since the blocks of a run may have different next uses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from plumage.blocks.run import Run
from plumage.eviction.base import ScoredPolicy

__all__ = ["Belady", "future_of"]


def future_of(requests: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """The times of use of each block, for chains served in this order, with the index of the request as the time."""
    uses: dict[int, list[int]] = {}
    for index, hashes in enumerate(requests):
        for block in hashes:
            uses.setdefault(block, []).append(index)
    return uses


class Belady(ScoredPolicy):
    """uses: times of use of each block, ascending, on the clock of the pool's calls."""

    at_once = 1

    def __init__(self, uses: Mapping[int, Sequence[float]]) -> None:
        super().__init__()
        self._uses = uses

    def score(self, run: Run) -> float:
        times = self._uses.get(run.hashes[-1], ())
        after = bisect_right(times, run.used)
        return -times[after] if after < len(times) else float("-inf")

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if run.hashes:
            self.release(run)
        else:
            self.hold(run)
