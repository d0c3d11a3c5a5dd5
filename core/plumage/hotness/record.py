"""The hotness record of one engine's prefix tree: the uses of runs, in a cuckoo filter.

A node's key is the chained hash of its last block, which identifies all tokens up to its end (HotPrefix Eq. 2). A run
has another end after a split, growth or eviction. Its uses are then copied to the new key. They also stay under the old
key, because the same prompt may come again.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.run import Run
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.node_uses import NodeUses

__all__ = ["NodeRecord", "Recorded"]


class NodeRecord:
    """The record. aged: True after the filter aged, until the policy that orders runs by clock resets it."""

    def __init__(self, table: CuckooFilter) -> None:
        self.table = table
        self.aged = False
        self._last: Run | None = None  # the last used run; a request uses runs from the root downwards
        self._depth = 0

    def get(self, key: int) -> NodeUses | None:
        """The uses of the node that ends with block `key`, or None."""
        return self.table.get(key)

    def uses(self, run: Run) -> NodeUses:
        """The uses of a run. A node that a full filter has dropped counts as used once, long ago."""
        return self.table.get(run.hashes[-1]) or NodeUses(1, 0)

    def use(self, run: Run) -> None:
        """Count one request's use of the run, cached or just computed. Each request uses exactly one root."""
        if self.table.tick(int(run.parent is None), len(run.hashes)):
            self.aged = True
        self._depth = self._depth + 1 if run.parent is not None and run.parent is self._last else run.depth
        self._last = run
        self.table.touch(run.hashes[-1], self._depth)

    def moved(self, run: Run, old_end: int) -> None:
        """Copy the uses of a run to its new end. old_end: the block with which it ended before."""
        self._last = None  # a split may have changed its depth
        uses = self.table.get(old_end)
        if uses is not None:
            self.table.put(run.hashes[-1], uses)


class Recorded:
    """An eviction policy with a hotness record: the host tier needs one with every policy."""

    def __init__(self, policy: EvictionPolicy, record: NodeRecord) -> None:
        self._policy = policy
        self._record = record
        self.at_once = policy.at_once
        self.recall = policy.recall
        self.idle = policy.idle
        self.release = policy.release
        self.hold = policy.hold
        self.need = policy.need
        self.victim = policy.victim
        self.clear = policy.clear

    def insert(self, run: Run, now: float) -> None:
        self._record.use(run)
        self._policy.insert(run, now)

    def access(self, run: Run, now: float) -> None:
        self._record.use(run)
        self._policy.access(run, now)

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._record.table.tick(0, blocks)
        self._record.moved(run, run.hashes[-blocks - 1])
        self._policy.grow(run, blocks, now)

    def split(self, upper: Run, lower: Run) -> None:
        self._record.moved(upper, lower.hashes[-1])
        self._policy.split(upper, lower)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if run.hashes:
            self._record.moved(run, evicted[-1])
        self._policy.shrink(run, evicted)
