"""The prefix tree for a pool that counts references block by block and knows no requests, as vLLM's.

In such a pool a cached block may have several copies, each in use or not. A caller that takes a copy names neither the
request nor the length of its prefix. So a run's `holds` count the used copies of its blocks, not the requests whose
cached part ends with it. A run is busy while it has holds or a busy child. A run of which a request uses only a part is
split first. So all blocks of a run have the same history. Block names may be any hashable values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.run import Name, Run
from plumage.blocks.tree import PrefixTree
from plumage.errors import StateError

__all__ = ["CountedTree"]


class CountedTree(PrefixTree):
    """used_copies: returns how many copies of the named blocks are in use. It is called when a used run is split."""

    def __init__(self, policy: EvictionPolicy, used_copies: Callable[[Sequence[Name]], int]) -> None:
        super().__init__(policy)
        self._used_copies = used_copies

    def take(self, blocks: Iterable[Name]) -> None:
        """Takes one copy of each of `blocks` into use, parents first. KeyError if one is unknown; then nothing
        changed."""
        for run, copies in self._copies(list(blocks), 1).items():
            self.hold(run, copies)

    def let_go(self, blocks: Iterable[Name]) -> None:
        """Releases one copy of each of `blocks`, children first. KeyError if one is unknown; then nothing
        changed."""
        for run, copies in self._copies(list(blocks), -1).items():
            self.drop(run, copies)

    def _copies(self, blocks: list[Name], step: int) -> dict[Run, int]:
        """How many of `blocks` each run has. Most chains have whole runs, which are compared at once. step: 1 if
        parents are first, −1 if children are."""
        copies: dict[Run, int] = {}
        run_of, at, first = self._run_of, 0, 0 if step > 0 else -1
        while at < len(blocks):
            run = run_of[blocks[at]]
            hashes, length = run.hashes, 1
            if hashes[first] == blocks[at] and blocks[at : at + len(hashes)] == hashes[::step]:
                length = len(hashes)
            copies[run] = copies.get(run, 0) + length
            at += length
        return copies

    def use(self, end: Name, blocks: Iterable[Name], now: float) -> None:
        """Counts a request that uses the chain up to `end`. `blocks` are those of the chain whose copy comes into
        use."""
        run = self.run_ending(end)
        self.take(blocks)
        self.access(run, now)

    def store_one(self, block: Name, parent: Name, now: float) -> bool:
        """`store` of one block at the end of a chain that only its own request uses, in half the time. False, and
        nothing changed, for any other block or place."""
        run_of = self._run_of
        run = run_of.get(parent)
        if run is None or not (run.fresh and run.busy) or run.children or block in run_of or run.hashes[-1] != parent:
            return False
        if self.policy.recall((block,)):
            return False
        run.hashes.append(block)
        run.used = now
        run_of[block] = run
        run.holds += 1
        run.busy += 1
        self.cached += 1
        self.in_use += 1
        self.policy.grow(run, 1, now)
        return True

    def store(self, blocks: list[Name], parent: Name | None, now: float, owner: Hashable = None) -> int:
        """The chain `blocks` was computed below `parent` (None: at the root) and is now cached; a copy of each is in
        use. owner: the tenant, for a chain at the root. The tree keeps the list. Returns how many leading blocks were
        cached before; these have one more copy now. StateError if the parent is not cached."""
        above = None if parent is None else self.run_ending(parent)
        known = self.match(blocks)
        if known:
            above = self.run_ending(blocks[known - 1])
            self.take(blocks[:known])
            self.access(above, now)
        if known < len(blocks):
            self.add(blocks[known:] if known else blocks, above, now, owner)
        return known

    def add(self, hashes: list[Name], parent: Run | None, now: float, owner: Hashable = None) -> Run:
        """Cache new blocks, a copy of each in use, below the end of `parent`."""
        cuts = self.policy.recall(hashes)
        if not cuts and parent is not None and parent.fresh and parent.busy and not parent.children:
            self._extend(parent, hashes, now)
            parent.holds += len(hashes)
            parent.busy += len(hashes)
            return parent
        top = 0
        for cut in (*cuts, len(hashes)):
            if parent is not None:
                self.hold(parent)  # the new run takes over this hold
            parent = self._append(hashes[top:cut] if cuts else hashes, parent, now, owner)
            parent.holds += cut - top - 1
            parent.busy += cut - top - 1
            top = cut
        if parent is None:
            raise StateError("a chain without blocks")
        return parent

    def remove(self, block: Name) -> list[Name]:
        """The last copy of `block` was removed, but not by `evict`. The block and all below it leave the tree, in use
        or not, since no look-up can reach them. Returns these blocks, children first. Visits every run unless the block
        is the end of an evictable leaf, so call it rarely."""
        run = self._run_of.get(block)
        if run is None:
            return []
        if run in self.leaves and run.hashes[-1] == block:
            return [self.evict_last(run)]
        place = run.hashes.index(block)
        if place:
            upper = self._split(run, place)
            self.hold(upper)  # calls the policy's `idle` if it is idle
            self.drop(upper)
        gone: list[Name] = []
        for below in reversed(list(self.runs())):
            if any(one is run for one in below.path()):
                if below.holds:
                    self.drop(below, below.holds)
                gone += reversed(self.evict(below, len(below.hashes)))
        return gone

    def _split(self, run: Run, blocks: int) -> Run:
        busy = bool(run.holds)
        upper = super()._split(run, blocks)
        if busy:
            copies = self._used_copies(upper.hashes)
            upper.holds += copies
            upper.busy += copies
            if copies:
                self.drop(run, copies)
        return upper
