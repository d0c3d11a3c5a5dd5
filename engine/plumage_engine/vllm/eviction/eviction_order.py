"""Chooses the free blocks that vLLM's pool evicts next: empty ones, then spare copies, then the policy's choice.

The blocks of full-attention groups are kept as core's tree of runs, by hash and group, so a policy sees prefixes and
not blocks. A pool may also hold cached blocks that are in no tree. They are of sliding-window and Mamba groups, partial
blocks at the end of prompts, or descendants of a removed block. vLLM's LRU orders these. Each part keeps the share of
the pool that LRU would give it. When LRU would evict a block of the tree, the policy chooses another one. The two then
swap places in the list (LRU-SP: Cao, Felten and Li, OSDI 1994, §3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plumage.blocks.counted import CountedTree
from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.errors import StateError
from plumage_engine.vllm.compat.block_pool import BlockPool, KVCacheBlock
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.eviction.free_list import move_behind, skip_uncached, swap
from plumage_engine.vllm.eviction.spare_copies import SpareCopies, copies_of

__all__ = ["EvictionOrder"]

Name = Any
"""A block's hash with its group, as vLLM joins them: bytes."""

_UNKNOWN = 0
_KEPT = 1  # cached, free, in the tree
_HELD = 2  # cached and in use; counted in its run of the tree
_OTHER = 3  # cached, free, in no tree


class EvictionOrder:
    """tree: the cached blocks of `groups`, to read.
    state: by block id; zero for a block that is empty or being evicted.
    clock: seconds.
    label: of the evictions that the policy chose.
    """

    def __init__(
        self,
        pool: BlockPool,
        policy: EvictionPolicy,
        groups: frozenset[int],
        counters: Counters,
        clock: Callable[[], float],
        label: str,
    ) -> None:
        self.tree = CountedTree(policy, self._used_copies)
        self.state = bytearray(pool.num_gpu_blocks)
        self._pool = pool
        self.policy = policy
        self._groups = groups
        self._counters = counters
        self._clock = clock
        self._label = label
        self._copies = SpareCopies(pool)
        self._others: dict[int, KVCacheBlock] = {}

    # -- events of the pool --------------------------------------------------------------------------------------------

    def cached(self, blocks: Sequence[KVCacheBlock], first: int, end: int, group: int, owner: str | None) -> None:
        """`blocks[first:end]`, of a request that holds them, got their hashes; those before already had them.

        owner: the salt of the request, which names a tenant.
        """
        if group in self._groups and first < end:
            above = blocks[first - 1].block_hash if first else None
            if end - first == 1 and above is not None and not self._others:
                block = blocks[first]
                if block.block_hash is not None and self.tree.store_one(block.block_hash, above, self._clock()):
                    self.state[block.block_id] = _HELD
                    return
            self.inserted(blocks[first:end], above, root=not first, owner=owner)

    def inserted(self, blocks: Sequence[KVCacheBlock], parent: Name, *, root: bool, owner: str | None = None) -> None:
        """A chain of blocks, all in use, got their hashes, below the block `parent` or at the root.

        Blocks behind one that is not cached can't be found, nor can any if the parent is not cached; these are in no
        tree.
        """
        names = [block.block_hash for block in blocks]
        if None in names:
            names = names[: names.index(None)]
        if not names or (not root and parent not in self.tree):
            return
        known = self.tree.store(names, None if root else parent, self._clock(), owner)
        state = self.state
        for block in blocks[: len(names)]:
            state[block.block_id] = _HELD
        for name in names if self._others else names[:known]:  # a block in no tree may have one of these names
            self._used_again(name)

    def touched(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Requests, or a connector, hold these blocks too.

        Blocks that form a chain from the root are a request's prefix and count as a use; others are only kept.
        """
        if self._others or not blocks or blocks[-1].block_hash not in self.tree:
            blocks = self._in_tree(blocks)
            if not blocks:
                return
        state, used = self.state, self._is_prefix(blocks)
        if not used:
            blocks = self._in_tree(blocks)
        names = [block.block_hash for block in blocks if state[block.block_id] != _HELD]
        if used:
            self.tree.use(blocks[-1].block_hash, names, self._clock())
        else:
            self.tree.take(names)
        for block in blocks:
            state[block.block_id] = _HELD
        if self._copies.several:
            for name in self._copies.several.intersection(block.block_hash for block in blocks):
                self._used_again(name)

    def freed(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Takes blocks, children first; those without a reference are now in vLLM's free list."""
        state, several = self.state, self._copies.several
        names: list[Name] = []
        copied: list[KVCacheBlock] = []
        for block in blocks:
            if block.ref_cnt:
                continue
            known, name = state[block.block_id], block.block_hash
            if known == _HELD:
                state[block.block_id] = _KEPT
                names.append(name)
                if name in several:
                    copied.append(block)
            elif not known and name is not None:
                self._freed_outside_tree(block)
        if names:
            self.tree.let_go(names)
        for block in copied:
            self._copies.freed(block)

    def uncached(self, block: KVCacheBlock, names: Sequence[Name]) -> None:
        """The block lost its hashes without the policy's choice: vLLM removed it from the cache or reused it."""
        known, self.state[block.block_id] = self.state[block.block_id], _UNKNOWN
        self._others.pop(block.block_id, None)
        for name in names:
            self._copies.removed(block, name)
            if name not in self.tree:
                continue
            if not copies_of(self._pool, name):
                self._cut(name)
            elif known == _HELD:
                self.tree.let_go([name])
        if block.next_free_block is not None:
            move_behind((block,), self._pool.free_block_queue.fake_free_list_head)

    def reset(self) -> None:
        """The cache was emptied; no block is in use."""
        self._counters.add("evictions", len(self.state) - self.state.count(_UNKNOWN), "reset")
        self.state = bytearray(self._pool.num_gpu_blocks)
        self._copies.clear()
        self._others.clear()
        self.tree.clear()

    # -- choosing blocks -----------------------------------------------------------------------------------------------

    def make_room(self, blocks: int) -> None:
        """vLLM is about to take the first `blocks` of its free list: move the blocks to be evicted there.

        If there are fewer, vLLM takes the blocks that follow.
        """
        queue = self._pool.free_block_queue
        if not 0 < blocks <= queue.num_free_blocks:
            return
        if blocks == 1 and not (self._others or self._copies.spare):
            head = queue.fake_free_list_head
            if head.next_free_block.block_hash is not None:
                self._one_leaf(head)
            return
        last, found = skip_uncached(queue, blocks)
        if self._copies.spare and found < blocks:
            spare = self._spare(blocks - found)
            last = move_behind(spare, last)
            found += len(spare)
        if found == blocks:
            return
        if self._others:
            self._one_by_one(blocks - found, last)
        else:
            move_behind(self._leaves(blocks - found), last)

    def _spare(self, wanted: int) -> list[KVCacheBlock]:
        found = self._copies.take(wanted)
        for block in found:
            self.state[block.block_id] = _UNKNOWN
        self._counters.add("evictions", len(found), "duplicate")
        return found

    def _leaves(self, wanted: int) -> list[KVCacheBlock]:
        """Up to `wanted` blocks, already removed from the tree, so that their parents may follow them."""
        self.policy.need(wanted)
        names = self._single_names(wanted) if self.policy.at_once == 1 else self._names(wanted)
        found = [block for name in names if (block := self._evicted(name)) is not None]
        self._counters.add("evictions", len(found), self._label)
        return found

    def _one_leaf(self, head: KVCacheBlock) -> None:
        """Move one block to the front, as `_leaves` does: what a request that decodes asks for, every few steps."""
        policy, tree = self.policy, self.tree
        policy.need(1)
        block = self._evicted(tree.evict_last(policy.victim(self._clock()))) if tree.leaves else None
        if block is not None:
            self._counters.add("evictions", 1, self._label)
            move_behind((block,), head)

    def _evicted(self, name: Name) -> KVCacheBlock | None:
        """The free block of a name that has just left the tree; None for one whose copies are in use."""
        block = self._pool.cached_block_hash_to_block._cache[name]
        if type(block) is dict or block.ref_cnt:
            block = self._free_copy(name)
            if block is None:
                return None
        self.state[block.block_id] = _UNKNOWN
        self._others.pop(block.block_id, None)
        return block

    def _names(self, wanted: int) -> list[Name]:
        tree, policy, now = self.tree, self.policy, self._clock()
        names: list[Name] = []
        while tree.leaves and len(names) < wanted:
            names += reversed(tree.evict(policy.victim(now), min(wanted - len(names), policy.at_once)))
        return names

    def _single_names(self, wanted: int) -> list[Name]:
        evict_last, victim, leaves, now = self.tree.evict_last, self.policy.victim, self.tree.leaves, self._clock()
        names: list[Name] = []
        for _ in range(wanted):
            if not leaves:
                break
            names.append(evict_last(victim(now)))
        return names

    def _one_by_one(self, wanted: int, last: KVCacheBlock) -> None:
        """Lets the policy choose where LRU would take a block of the tree. For cached blocks that are in no tree."""
        passed: set[int] = set()  # blocks of the tree that vLLM takes because the policy had none in their place
        for _ in range(wanted):
            head = last.next_free_block
            if self._others.pop(head.block_id, None) is not None:
                self._counters.add("evictions", label="other")
            else:
                chosen = self._leaves(1)
                while chosen and chosen[0].block_id in passed:  # it stands before `head` already
                    chosen = self._leaves(1)
                for block in chosen:
                    swap(head, block)
                if not chosen:
                    passed.add(head.block_id)
            last = last.next_free_block

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _is_prefix(self, blocks: Sequence[KVCacheBlock]) -> bool:
        """Whether these form a chain from the root to the last of them; both ends of each run are compared."""
        lowest = self.tree.run_at(blocks[-1].block_hash)
        end = len(blocks)
        for run in lowest.path() if lowest is not None else ():
            if not run.start < end <= run.start + len(run.hashes):
                return False
            first, last = blocks[run.start].block_hash, blocks[end - 1].block_hash
            if first != run.hashes[0] or last != run.hashes[end - run.start - 1]:
                return False
            end = run.start
        return not end

    def _in_tree(self, blocks: Sequence[KVCacheBlock]) -> list[KVCacheBlock]:
        """Returns the blocks in the tree; the others are in use, so they are removed from the free ones."""
        for block in blocks:
            if self._others.pop(block.block_id, None) is not None:
                self.state[block.block_id] = _UNKNOWN
        return [block for block in blocks if block.block_hash in self.tree]

    def _freed_outside_tree(self, block: KVCacheBlock) -> None:
        """A free block that no run counts: it is in no tree, or it is a second copy of a block in the tree."""
        if block.block_hash in self.tree:
            self.state[block.block_id] = _KEPT
            self._copies.freed(block)
        else:
            self.state[block.block_id] = _OTHER
            self._others[block.block_id] = block

    def _used_again(self, name: Name) -> None:
        """A copy of a block of the tree came into use, perhaps one of several."""
        for copy in self._copies.used(name):
            self.state[copy.block_id] = _KEPT
            self._others.pop(copy.block_id, None)

    def _cut(self, name: Name) -> None:
        """The last copy of `name` left the cache: its descendants stay cached in vLLM, but in no tree."""
        for gone in self.tree.remove(name):
            self._left_tree(gone)

    def _free_copy(self, name: Name) -> KVCacheBlock | None:
        """A free block of `name`, which has left the tree; its other copies are in no tree from now on.

        None where a copy that the tree does not know is in use and the others are being evicted.
        """
        for copy in copies_of(self._pool, name):
            if copy.ref_cnt and self.state[copy.block_id] == _HELD:
                raise StateError(f"the policy chose a prefix whose block {copy.block_id} is in use")
        self._left_tree(name)
        free = next((copy for copy in copies_of(self._pool, name) if copy.block_id in self._others), None)
        return None if free is None else self._others.pop(free.block_id)

    def _left_tree(self, name: Name) -> None:
        """`name` left the tree but has copies. A free one with state zero is being evicted."""
        self._copies.forget(name)
        for copy in copies_of(self._pool, name):
            if copy.ref_cnt:
                self.state[copy.block_id] = _UNKNOWN
            elif self.state[copy.block_id]:
                self.state[copy.block_id] = _OTHER
                self._others[copy.block_id] = copy

    def _used_copies(self, names: Sequence[Name]) -> int:
        state = self.state
        return sum(state[copy.block_id] == _HELD for name in names for copy in copies_of(self._pool, name))
