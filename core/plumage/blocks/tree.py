"""The prefix tree of cached blocks: runs, the requests that use them, and the evictable leaves.

Only leaves are evicted, so the parent of every cached block is cached. Therefore a bisection finds the cached part of a
prompt, and a hold on the *end* of a request's cached part protects all of it. `hold` and `drop` cost a step for each
run, up to the first ancestor that is used by other requests too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.run import Name, Run
from plumage.errors import StateError

__all__ = ["PrefixTree"]


class PrefixTree:
    """cached: number of blocks in the tree. in_use: those that a request uses, also through a descendant. leaves: the
    evictable ones; the one that has been evictable longest is first."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.cached = 0
        self.in_use = 0
        self.leaves: dict[Run, None] = {}
        self._run_of: dict[Name, Run] = {}

    def __contains__(self, block: Name) -> bool:
        return block in self._run_of

    def match(self, hashes: Sequence[Name]) -> int:
        """How many leading blocks of the chain `hashes` are cached."""
        run_of = self._run_of
        low, high = 0, len(hashes)
        if not high or hashes[0] not in run_of:
            return 0
        if hashes[-1] in run_of:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if hashes[middle] in run_of:
                low = middle
            else:
                high = middle
        return high

    def run_ending(self, block: Name) -> Run:
        """The run that ends with `block`. If `block` lies inside a run, the run is split. StateError if it is not
        cached."""
        run = self._run_of.get(block)
        if run is None:
            raise StateError(f"block {block!r} is not cached")
        if run.hashes[-1] == block:
            return run
        return self._split(run, run.hashes.index(block) + 1)

    def run_at(self, block: Name) -> Run | None:
        """The run that contains `block`, without a split."""
        return self._run_of.get(block)

    def hold(self, run: Run, holds: int = 1) -> None:
        """The cached part of one more request, or of `holds` more, ends here. The run and its ancestors can not be
        evicted now."""
        run.holds += holds
        above: Run | None = run
        while above is not None:
            above.busy += holds
            if above.busy > holds:
                return
            self.in_use += len(above.hashes)
            if not above.children:
                self._held(above)
            above, holds = above.parent, 1

    def drop(self, run: Run, holds: int = 1) -> None:
        """The cached part of one request, or of `holds`, no longer ends here. StateError if fewer requests use the
        run."""
        if run.holds < holds:
            raise StateError(f"{run!r} is not in use: it was released twice, or never pinned")
        run.holds -= holds
        above: Run | None = run
        while above is not None:
            above.busy -= holds
            if above.busy:
                return
            self.in_use -= len(above.hashes)
            self.policy.idle(above)
            if not above.children:
                self._released(above)
            above, holds = above.parent, 1

    def access(self, run: Run, now: float) -> None:
        """Counts a request that uses `run` and all its ancestors."""
        policy = self.policy
        path = list(run.path())
        for used in reversed(path):
            used.uses += 1
            used.used = now
            used.fresh = False
            policy.access(used, now)

    def add(self, hashes: list[Name], parent: Run | None, now: float, owner: Hashable = None) -> Run:
        """Cache new blocks below the end of `parent`, which the caller uses. The caller's hold moves to their end.
        owner: of the request; blocks below one of an owner have that one."""
        cuts = self.policy.recall(hashes)
        if not cuts and parent is not None and parent.fresh and parent.holds == 1 and parent.busy == 1:
            self._extend(parent, hashes, now)
            return parent
        top = 0
        for cut in cuts:
            parent = self._append(hashes[top:cut], parent, now, owner)
            top = cut
        return self._append(hashes[top:], parent, now, owner)

    def evict(self, run: Run, blocks: int) -> list[Name]:
        """Remove up to `blocks` blocks from the end of the evictable leaf `run`. Returns them, deepest last."""
        keep = max(0, len(run.hashes) - blocks)
        evicted = run.hashes[keep:]
        del run.hashes[keep:]
        self.cached -= len(evicted)
        for block in evicted:
            del self._run_of[block]
        run.fresh = False
        self.policy.shrink(run, evicted)
        if not keep:
            self._unlink(run)
        return evicted

    def evict_last(self, run: Run) -> Name:
        """Remove and return the last block of the evictable leaf `run`: `evict` of one block, in half the time."""
        block = run.hashes.pop()
        self.cached -= 1
        del self._run_of[block]
        run.fresh = False
        self.policy.shrink(run, (block,))
        if not run.hashes:
            self._unlink(run)
        return block

    def clear(self) -> None:
        """Remove everything. StateError while requests use blocks."""
        if self.in_use:
            raise StateError(f"{self.in_use} blocks are in use; end their requests before clearing the cache")
        self._run_of.clear()
        self.leaves.clear()
        self.cached = 0
        self.policy.clear()

    def runs(self) -> Iterator[Run]:
        """Every run once, parents before children."""
        return iter(sorted(set(self._run_of.values()), key=lambda run: run.start))

    def _append(self, hashes: list[Name], parent: Run | None, now: float, owner: Hashable) -> Run:
        run = Run(hashes, parent, now, owner if parent is None or parent.owner is None else parent.owner)
        run.holds = run.busy = 1
        if parent is not None:
            parent.children += 1
            parent.holds -= 1  # `busy` is unchanged: the hold moved into a child that is busy
            parent.fresh = False
        self._run_of.update(dict.fromkeys(hashes, run))
        self.cached += len(hashes)
        self.in_use += len(hashes)
        self.policy.insert(run, now)
        return run

    def _extend(self, run: Run, hashes: list[Name], now: float) -> None:
        run.hashes.extend(hashes)
        run.used = now
        self._run_of.update(dict.fromkeys(hashes, run))
        self.cached += len(hashes)
        self.in_use += len(hashes)
        self.policy.grow(run, len(hashes), now)

    def _split(self, run: Run, blocks: int) -> Run:
        evictable = run.evictable
        if evictable:
            self._held(run)
        upper = run.split(blocks)
        self._run_of.update(dict.fromkeys(upper.hashes, upper))
        self.policy.split(upper, run)
        if evictable:
            self._released(run)
        return upper

    def _unlink(self, run: Run) -> None:
        del self.leaves[run]
        parent = run.parent
        if parent is None:
            return
        parent.children -= 1
        if parent.evictable:
            self._released(parent)

    def _released(self, run: Run) -> None:
        self.leaves[run] = None
        self.policy.release(run)

    def _held(self, run: Run) -> None:
        self.leaves.pop(run, None)
        self.policy.hold(run)
