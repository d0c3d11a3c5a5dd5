"""The prefix cache of one engine: a pool of equal blocks, some in use, some cached, some free.

It counts blocks as vLLM's block pool does. A block is *anonymous* while a request computes it, and afterwards *cached*
under its chained hash. If two requests compute one prefix at the same time, the cache has two copies of it. The second
is a *duplicate*: it is published when stored, and its eviction has its own removal event. Free blocks are used first,
then duplicates are evicted, then the policy chooses among the leaves.

Every method takes whole chains: the Python calls for single blocks would cost more than their work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from plumage.blocks.events import BlockEvent, Cleared, EventSink, Removed, Stored
from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.run import Run
from plumage.blocks.tree import PrefixTree
from plumage.errors import ConfigurationError, StateError

__all__ = ["BlockPool", "CachedBlock", "Duplicates", "EvictionHook"]

EvictionHook = Callable[[Run, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """One entry of a snapshot."""

    block: int
    parent: int | None
    copies: int


class BlockPool:
    """capacity: blocks. sink: receives events as they happen. on_evict: called with a leaf and the blocks that it is
    about to lose, so that a host tier can copy them."""

    def __init__(
        self,
        capacity: int,
        policy: EvictionPolicy,
        sink: EventSink | None = None,
        on_evict: EvictionHook | None = None,
    ) -> None:
        if capacity < 1:
            raise ConfigurationError(f"a block pool needs a capacity of at least one block, got {capacity}")
        self.capacity = capacity
        self.policy = policy
        self.on_evict = on_evict
        self.evictions = 0
        self._sink = sink
        self._tree = PrefixTree(policy)
        self._duplicates = Duplicates()
        self._anonymous = 0

    @property
    def cached(self) -> int:
        """Distinct cached blocks."""
        return self._tree.cached

    @property
    def tree(self) -> PrefixTree:
        """The cached runs, for reading only."""
        return self._tree

    @property
    def in_use(self) -> int:
        """Blocks that running requests use: cached ones, their duplicates, and anonymous ones."""
        return self._tree.in_use + self._duplicates.held + self._anonymous

    @property
    def usage(self) -> float:
        """Share of the pool in use, as vLLM's `kv_cache_usage_perc`: zero when idle, also if the cache is full."""
        return self.in_use / self.capacity

    @property
    def available(self) -> int:
        """Blocks that `allocate` could provide now."""
        return self.capacity - self.in_use

    @property
    def free(self) -> int:
        """Blocks that are neither in use nor cached."""
        return self.capacity - self._anonymous - self._tree.cached - self._duplicates.total

    def match(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of the chain `hashes` are cached."""
        return self._tree.match(hashes)

    def pin(self, hashes: Sequence[int], now: float) -> int:
        """Take the cached leading blocks of `hashes` into use. Returns their number. Pass exactly these blocks to
        `release`."""
        blocks = self._tree.match(hashes)
        if blocks:
            run = self._tree.run_ending(hashes[blocks - 1])
            self._tree.hold(run)
            self._tree.access(run, now)
        return blocks

    def allocate(self, blocks: int, now: float) -> bool:
        """Take `blocks` anonymous blocks, with evictions if necessary. False if there are not enough; then nothing
        changed."""
        if blocks > self.available:
            return False
        if blocks > self.free:
            self._evict(blocks - self.free, now)
        self._anonymous += blocks
        return True

    def commit(self, hashes: Sequence[int], parent: int | None, now: float, owner: Hashable = None) -> None:
        """Turn anonymous blocks, in order, into cached ones below `parent`, the last cached block of the request (None
        if it has none). Afterwards the request's cached part ends with `hashes`. owner: the tenant whose salt they
        have. StateError for more blocks than are anonymous."""
        if not hashes:
            return
        if len(hashes) > self._anonymous:
            raise StateError(f"commit of {len(hashes)} blocks, but only {self._anonymous} are anonymous")
        above = None if parent is None else self._held(parent)
        self._anonymous -= len(hashes)
        known = self._tree.match(hashes)
        if known:
            above = self._copy(hashes[:known], above, now)
        if known < len(hashes):
            self._tree.add(list(hashes[known:]), above, now, owner)
        self._publish(Stored, hashes, parent)

    def release(self, hashes: Sequence[int], anonymous: int, now: float) -> None:
        """Releases what an ended request used: the cached chain `hashes` and `anonymous` blocks that were not
        committed."""
        if anonymous > self._anonymous:
            raise StateError(f"release of {anonymous} anonymous blocks, but there are only {self._anonymous}")
        if hashes:
            self._tree.drop(self._held(hashes[-1]))
            self._duplicates.release(hashes)
        self._anonymous -= anonymous

    def discard(self, block: int) -> bool:
        """Drop the evictable leaf that ends with `block`, to make room for a promotion. False if there is no such
        leaf."""
        run = self._tree.run_at(block)
        if run is None or run.hashes[-1] != block or not run.evictable:
            return False
        self._publish_removed(self._tree.evict(run, len(run))[::-1])
        return True

    def bring(self, hashes: Sequence[int], parent: int | None, now: float) -> bool:
        """Cache the chain `hashes` below `parent`, copied from another tier and not in use yet. It takes only free
        blocks. False if they are too few, the parent is not cached, or the chain is cached already; then nothing
        changed."""
        orphan = parent is not None and parent not in self._tree
        if orphan or len(hashes) > self.free or any(block in self._tree for block in hashes):
            return False
        above = None if parent is None else self._tree.run_ending(parent)
        if above is not None:
            self._tree.hold(above)
        self._tree.drop(self._tree.add(list(hashes), above, now))
        self._publish(Stored, hashes, parent)
        return True

    def clear(self) -> None:
        """Forget all cached blocks. StateError while any is in use."""
        self._tree.clear()
        self._duplicates.clear()
        if self._sink is not None:
            self._sink(Cleared())

    def snapshot(self) -> Iterator[CachedBlock]:
        """Every cached block with its parent and number of copies, parents first."""
        for run in self._tree.runs():
            above = None if run.parent is None else run.parent.hashes[-1]
            for block in run.hashes:
                yield CachedBlock(block, above, 1 + self._duplicates.count(block))
                above = block

    def _held(self, block: int) -> Run:
        run = self._tree.run_ending(block)
        if not run.holds:
            raise StateError(f"block {block:#x} is the end of no request's cached part")
        return run

    def _copy(self, hashes: Sequence[int], above: Run | None, now: float) -> Run:
        """Count duplicates of cached blocks. The request's hold moves from `above` to the last of them."""
        for block in hashes:
            run = self._tree.run_at(block)
            self._duplicates.add(block, held=run is not None and run.busy > 0)
        end = self._tree.run_ending(hashes[-1])
        self._tree.hold(end)
        self._tree.access(end, now)
        if above is not None:
            self._tree.drop(above)
        return end

    def _evict(self, blocks: int, now: float) -> None:
        gone = self._duplicates.evict(blocks)
        if len(gone) < blocks:
            self.policy.need(blocks - len(gone))
        while len(gone) < blocks:
            run = self.policy.victim(now)
            taken = min(blocks - len(gone), len(run.hashes), self.policy.at_once)
            if self.on_evict is not None:
                self.on_evict(run, run.hashes[-taken:])
            gone.extend(reversed(self._tree.evict(run, taken)))
        self.evictions += blocks
        self._publish_removed(gone)

    def _publish(self, kind: type[Stored], hashes: Sequence[int], parent: int | None) -> None:
        if self._sink is not None:
            event: BlockEvent = kind(tuple(hashes), parent)
            self._sink(event)

    def _publish_removed(self, hashes: Sequence[int]) -> None:
        if self._sink is not None:
            self._sink(Removed(tuple(hashes)))


class Duplicates:
    """Second and further copies of cached blocks, by block hash. The oldest evictable copy is evicted first.

    A copy is *held* while the request that computed it runs, and evictable afterwards. The class does not track which
    request owns which copy: each request that ends frees one. Memory and events need only the counts, which are exact.
    """

    def __init__(self) -> None:
        self.held = 0
        self.idle = 0
        self._held: dict[int, int] = {}
        self._idle: dict[int, int] = {}

    @property
    def total(self) -> int:
        """The number of all copies beyond the first."""
        return self.held + self.idle

    def count(self, block: int) -> int:
        """Copies of `block` beyond the first."""
        return self._held.get(block, 0) + self._idle.get(block, 0)

    def add(self, block: int, *, held: bool) -> None:
        """Counts one more copy. held=False: no request uses the first copy, so one of the two is evictable at once."""
        if held:
            self._held[block] = self._held.get(block, 0) + 1
            self.held += 1
        else:
            self._idle[block] = self._idle.get(block, 0) + 1
            self.idle += 1

    def release(self, hashes: Sequence[int]) -> None:
        """A request that used `hashes` ended: one held copy of each of these blocks, if there is one, becomes
        evictable."""
        if not self._held:
            return
        for block in hashes:
            copies = self._held.get(block)
            if copies is None:
                continue
            if copies == 1:
                del self._held[block]
            else:
                self._held[block] = copies - 1
            self.held -= 1
            self.add(block, held=False)

    def evict(self, blocks: int) -> list[int]:
        """Drop up to `blocks` evictable copies, oldest first. Returns a hash for each copy."""
        gone: list[int] = []
        while self._idle and len(gone) < blocks:
            block, copies = next(iter(self._idle.items()))
            taken = min(copies, blocks - len(gone))
            gone.extend([block] * taken)
            if taken == copies:
                del self._idle[block]
            else:
                self._idle[block] = copies - taken
        self.idle -= len(gone)
        return gone

    def clear(self) -> None:
        """Forget all copies."""
        self.held = self.idle = 0
        self._held.clear()
        self._idle.clear()
