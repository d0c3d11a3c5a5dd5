"""The pool, under any policy, against a model that keeps single blocks and searches all of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.events import BlockEvent, Removed, Stored
from plumage.blocks.pool import BlockPool
from plumage_bench.baselines.eviction import POLICY_NAMES, make_policy


class Model:
    """Copies and parents by block, owners by request. It follows the pool's evictions, and rejects any that is not
    allowed.
    """

    def __init__(self) -> None:
        self.copies: dict[int, int] = {}
        self.parent: dict[int, int | None] = {}
        self.held: dict[int, list[int]] = {}

    def see(self, event: BlockEvent) -> None:
        if isinstance(event, Stored):
            above = event.parent
            for block in event.hashes:
                assert above is None or above in self.copies, "a block stored below one that is not cached"
                self.copies[block] = self.copies.get(block, 0) + 1
                self.parent[block] = above
                above = block
        elif isinstance(event, Removed):
            for block in event.hashes:
                self._remove(block)

    def _remove(self, block: int) -> None:
        self.copies[block] -= 1
        if self.copies[block]:
            return
        assert not any(block in blocks for blocks in self.held.values()), "a block in use was evicted"
        assert not any(self.parent[other] == block for other in self.copies), "an inner block was evicted"
        del self.copies[block]

    def match(self, hashes: list[int]) -> int:
        return next((index for index, block in enumerate(hashes) if block not in self.copies), len(hashes))

    def in_use(self) -> set[int]:
        return {block for blocks in self.held.values() for block in blocks}


def chain(rng: random.Random) -> list[int]:
    """A path in a small tree. A block's name is its path, so equal names mean equal prefixes."""
    path, blocks = "", []
    for _ in range(rng.randint(1, 9)):
        path += rng.choice("aab")
        blocks.append(hash(path) & 0xFFFFFFFFFFFF)
    return blocks


def drive(policy: str, seed: int, steps: int = 120) -> None:
    rng = random.Random(seed)
    model, capacity = Model(), rng.randint(9, 40)
    pool = BlockPool(capacity, make_policy(policy, capacity=capacity, rng=random.Random(seed)), model.see)
    running: dict[int, tuple[list[int], int, int]] = {}  # request → prompt, committed, anonymous
    for now in range(steps):
        request = rng.choice([*running, -1])
        if request < 0 or (len(running) < 3 and rng.random() < 0.4):
            start(pool, model, running, chain(rng), now)
        elif running[request][2] and rng.random() < 0.7:
            compute(pool, model, running, request, rng.randint(1, running[request][2]), now)
        else:
            blocks, committed, anonymous = running.pop(request)
            del model.held[request]
            pool.release(blocks[:committed], anonymous, now)
        check(pool, model, running, rng)


def start(
    pool: BlockPool, model: Model, running: dict[int, tuple[list[int], int, int]], blocks: list[int], now: int
) -> None:
    assert pool.match(blocks) == model.match(blocks)
    known = pool.pin(blocks, now)
    model.held[now] = blocks[:known]
    if pool.allocate(len(blocks) - known, now):
        running[now] = (blocks, known, len(blocks) - known)
    else:
        pool.release(blocks[:known], 0, now)
        del model.held[now]


def compute(
    pool: BlockPool, model: Model, running: dict[int, tuple[list[int], int, int]], request: int, count: int, now: int
) -> None:
    blocks, committed, anonymous = running[request]
    pool.commit(blocks[committed : committed + count], blocks[committed - 1] if committed else None, now)
    running[request] = (blocks, committed + count, anonymous - count)
    model.held[request] = blocks[: committed + count]


def check(pool: BlockPool, model: Model, running: dict[int, tuple[list[int], int, int]], rng: random.Random) -> None:
    assert pool.cached == len(model.copies)
    assert {entry.block: entry.copies for entry in pool.snapshot()} == model.copies
    anonymous = sum(left for _, _, left in running.values())
    assert pool.free == pool.capacity - anonymous - sum(model.copies.values())
    assert pool.in_use >= len(model.in_use()) + anonymous
    assert 0 <= pool.available <= pool.capacity
    probe = chain(rng)
    assert pool.match(probe) == model.match(probe)
    if not running:
        assert pool.usage == 0.0


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_counts_and_evictions_agree_with_the_model(policy: str, seed: int) -> None:
    drive(policy, seed)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_block_can_be_allocated_when_nothing_is_in_use(policy: str) -> None:
    rng = random.Random(5)
    pool = BlockPool(30, make_policy(policy, capacity=30, rng=random.Random(5)))
    for now in range(200):
        blocks = chain(rng)
        known = pool.pin(blocks, now)
        assert pool.allocate(len(blocks) - known, now)
        pool.commit(blocks[known:], blocks[known - 1] if known else None, now)
        pool.release(blocks, 0, now)
    assert pool.available == 30
    assert pool.allocate(30, 201.0)
    assert pool.cached == 0


def test_promotion_and_discard_move_idle_leaves_only() -> None:
    events: list[BlockEvent] = []
    pool = BlockPool(6, make_policy("Hotness", capacity=6, rng=random.Random(1)), events.append)
    assert pool.bring([1, 2, 3], None, 0.0)
    assert pool.usage == 0.0
    assert pool.bring([4], 3, 0.0)
    assert not pool.bring([5], 99, 0.0), "its parent is not cached"
    assert not pool.bring([2], 1, 0.0), "it is cached already"
    assert not pool.bring([7, 8, 9], None, 0.0), "no room"
    assert pool.pin([1, 2, 3, 4], 1.0) == 4
    assert not pool.discard(4), "in use"
    pool.release([1, 2, 3, 4], 0, 1.0)
    assert not pool.discard(2), "an inner block"
    assert pool.discard(4)
    assert isinstance(events[-1], Removed)
    assert pool.cached == 4 - len(events[-1].hashes)
