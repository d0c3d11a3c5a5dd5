"""The tree for a pool that counts references block by block, against a slow model of the counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.counted import CountedTree
from plumage_bench.baselines.eviction import POLICY_NAMES, make_policy


class Slow:
    """used: copies in use by block. parent: of each cached block. running: a chain and how much of it is cached."""

    def __init__(self, policy: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.used: Counter[int] = Counter()
        self.parent: dict[int, int | None] = {}
        self.running: list[tuple[list[int], int]] = []
        self.tree = CountedTree(make_policy(policy, capacity=40, rng=random.Random(seed)), self._count)
        self.now = 0.0

    def _count(self, blocks: Sequence[int]) -> int:
        return sum(self.used[block] for block in blocks)

    def chain(self) -> list[int]:
        path, blocks = "", []
        for _ in range(self.rng.randint(1, 9)):
            path += self.rng.choice("aab")
            blocks.append(hash(path) & 0xFFFFFFFF)
        return blocks

    def start(self) -> None:
        blocks = self.chain()
        known = self.tree.match(blocks)
        if known:
            self.tree.use(blocks[known - 1], blocks[:known], self.now)
            self.used.update(blocks[:known])
        self.running.append((blocks, known))

    def go_on(self) -> None:
        index = self.rng.randrange(len(self.running))
        blocks, done = self.running[index]
        end = min(len(blocks), done + self.rng.randint(1, 4))
        if end == done or (done and blocks[done - 1] not in self.parent):
            return
        if end - done == 1 and done and self.tree.store_one(blocks[done], blocks[done - 1], self.now):
            known = 0
        else:
            known = self.tree.store(blocks[done:end], blocks[done - 1] if done else None, self.now)
        assert known == sum(block in self.parent for block in blocks[done:end])
        for above, block in zip([None, *blocks], blocks, strict=False):
            if block in blocks[done:end]:
                self.parent[block] = above
                self.used[block] += 1
        self.running[index] = (blocks, end)

    def stop(self) -> None:
        blocks, done = self.running.pop(self.rng.randrange(len(self.running)))
        held = [block for block in blocks[:done] if block in self.parent]
        for block in held:
            self.used[block] -= 1
        self.tree.let_go(reversed(held))

    def evict(self) -> None:
        if not self.tree.leaves:
            return
        run = self.tree.policy.victim(self.now)
        for block in reversed(self.tree.evict(run, self.rng.randint(2, 5))) if self.now % 2 else self._last(run):
            assert not self.used[block], "a block in use was evicted"
            assert block not in self.parent.values(), "an inner block was evicted"
            del self.parent[block]

    def _last(self, run: object) -> list[int]:
        return [self.tree.evict_last(run)]  # type: ignore[arg-type]

    def remove(self) -> None:
        if not self.parent:
            return
        block = self.rng.choice(list(self.parent))
        gone = self.tree.remove(block)
        below = {block}
        while more := {child for child, above in self.parent.items() if above in below} - below:
            below |= more
        assert set(gone) == below
        assert gone[-1] == block
        self.running = [
            (blocks, min([done, *map(blocks.index, below.intersection(blocks))])) for blocks, done in self.running
        ]
        for child in gone:
            del self.parent[child]
            del self.used[child]

    def check(self) -> None:
        runs = list(self.tree.runs())
        assert Counter(block for run in runs for block in run.hashes) == Counter(self.parent.keys())
        for run in runs:
            assert run.holds == self._count(run.hashes)
            assert run.busy == run.holds + sum(bool(other.busy) for other in runs if other.parent is run)
            assert run.children == sum(other.parent is run for other in runs)
            assert (run in self.tree.leaves) == run.evictable
        assert self.tree.in_use == sum(len(run.hashes) for run in runs if run.busy)


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.booleans())
def test_counts_agree_with_the_slow_model(policy: str, seed: int, cuts: bool) -> None:
    slow = Slow(policy, seed)
    for _ in range(100):
        slow.now += 1.0
        act = slow.rng.random()
        if not slow.running or act < 0.25:
            slow.start()
        elif act < 0.6:
            slow.go_on()
        elif act < 0.75:
            slow.stop()
        elif act < 0.97 or not cuts:
            slow.evict()
        else:
            slow.remove()
        slow.check()


def test_unknown_block_changes_nothing() -> None:
    slow = Slow("Lru", 1)
    slow.tree.store([1, 2, 3], None, 0.0)
    with pytest.raises(KeyError):
        slow.tree.take([1, 2, 9])
    with pytest.raises(KeyError):
        slow.tree.let_go([3, 2, 9])
    (run,) = slow.tree.runs()
    assert run.holds == run.busy == 3


def test_names_may_be_bytes() -> None:
    for policy in POLICY_NAMES:
        tree = CountedTree(make_policy(policy, capacity=8, rng=random.Random(1)), lambda blocks: 0)
        names = [bytes([number]) * 36 for number in range(4)]
        tree.store(list(names), None, 0.0)  # type: ignore[arg-type]
        tree.let_go(reversed(names))  # type: ignore[arg-type]
        assert tree.evict(tree.policy.victim(1.0), 1) == names[-1:]
