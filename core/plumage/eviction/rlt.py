"""RLT, randomized leaf-token eviction (KVRouting §4.1, Alg. 1), in blocks.

Each used block is marked. When as many distinct blocks are marked as the cache holds, a new phase starts, and all marks
but the latest are cleared. A miss in a full cache evicts an unmarked leaf, uniformly at random. RLT's misses are within
O(log n) of the best leaf eviction in hindsight, and leaf-LRU's within O(n); n = cache size - shortest path + 1 (App.
C).

Errata and granularity:
- Alg. 1 does not say what happens if running requests use every unmarked leaf. Here this starts a new phase too.
- The authors evict single tokens; an engine evicts blocks. A whole run is marked, because its blocks are always used
  together. Marks are counted in blocks. If a phase ends inside a run, only the rest of the run counts for the new
  phase. Marks of single blocks would count the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError, StateError
from plumage.eviction.base import QuietPolicy
from plumage.eviction.leaf_heap import NO_VICTIM
from plumage.randomness import Randomness

__all__ = ["LeafSet", "Rlt"]


class LeafSet:
    """A set with a uniformly random choice in O(1): an array, `members`. A removed element is replaced by the last
    one."""

    def __init__(self) -> None:
        self.members: list[Run] = []
        self._at: dict[Run, int] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, run: object) -> bool:
        return run in self._at

    def add(self, run: Run) -> None:
        if run not in self._at:
            self._at[run] = len(self.members)
            self.members.append(run)

    def discard(self, run: Run) -> None:
        place = self._at.pop(run, None)
        if place is None:
            return
        last = self.members.pop()
        if last is not run:
            self.members[place] = last
            self._at[last] = place

    def pick(self, rng: Randomness) -> Run:
        """A member; each has the same probability."""
        return self.members[int(rng.random() * len(self.members))]

    def take(self, other: LeafSet) -> None:
        """Move all members of `other` here."""
        if len(other) > len(self):
            self.members, other.members = other.members, self.members
            self._at, other._at = other._at, self._at
        for run in other.members:
            self.add(run)
        other.clear()

    def clear(self) -> None:
        self.members.clear()
        self._at.clear()


class Rlt(QuietPolicy):
    """A run is marked if its `rank` is the number of the phase. marked: distinct blocks marked in this phase.

    at_once: blocks that a leaf loses before another leaf is drawn; 1 in the paper. In an engine with 100,000 blocks a
    draw takes some microseconds, mostly for memory access. With 8, hit ratios are lower by at most 1/120.
    """

    def __init__(self, capacity: int, rng: Randomness, at_once: int = 1) -> None:
        if at_once < 1:
            raise ConfigurationError(f"at_once must be 1 block or more, got {at_once}")
        self.at_once = at_once
        self.phase = 1
        self.marked = 0
        self._capacity = capacity
        self._rng = rng
        self._unmarked_leaves = LeafSet()
        self._marked_leaves = LeafSet()

    def insert(self, run: Run, now: float) -> None:
        self._mark(run, len(run.hashes))

    def access(self, run: Run, now: float) -> None:
        if run.rank != self.phase:
            self._mark(run, len(run.hashes))

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._mark(run, blocks)

    def release(self, run: Run) -> None:
        leaves = self._marked_leaves if run.rank == self.phase else self._unmarked_leaves
        leaves.add(run)

    def hold(self, run: Run) -> None:
        self._unmarked_leaves.discard(run)
        self._marked_leaves.discard(run)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if not run.hashes:
            self.hold(run)

    def victim(self, now: float) -> Run:
        leaves = self._unmarked_leaves.members
        if not leaves:
            if not self._marked_leaves:
                raise StateError(NO_VICTIM)
            self._start_phase()
            leaves = self._unmarked_leaves.members
        return leaves[int(self._rng.random() * len(leaves))]

    def clear(self) -> None:
        self._unmarked_leaves.clear()
        self._marked_leaves.clear()
        self.phase += 1
        self.marked = 0

    def _mark(self, run: Run, blocks: int) -> None:
        room = self._capacity - self.marked
        if blocks >= room:
            self._start_phase()
            blocks = 1 + (blocks - room) % self._capacity
        run.rank = self.phase
        self.marked += blocks

    def _start_phase(self) -> None:
        self.phase += 1
        self.marked = 0
        self._unmarked_leaves.take(self._marked_leaves)
