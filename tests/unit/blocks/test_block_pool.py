"""The block pool counts as vLLM's does: pins, anonymous blocks, duplicates, leaves first, events."""

from __future__ import annotations

import random

import pytest

from plumage.blocks.events import BlockEvent, Cleared, Removed, Stored
from plumage.blocks.pool import BlockPool, CachedBlock
from plumage.errors import ConfigurationError, StateError
from plumage.eviction import make_policy


def pool_of(capacity: int, events: list[BlockEvent] | None = None, policy: str = "Lru") -> BlockPool:
    sink = None if events is None else events.append
    return BlockPool(capacity, make_policy(policy, capacity=capacity, rng=random.Random(1)), sink)


def serve(pool: BlockPool, hashes: list[int], now: float = 0.0) -> int:
    """One request from start to end; returns its cached blocks."""
    known = pool.pin(hashes, now)
    assert pool.allocate(len(hashes) - known, now)
    pool.commit(hashes[known:], hashes[known - 1] if known else None, now)
    pool.release(hashes, 0, now)
    return known


def test_prompt_is_cached_after_its_request_and_the_pool_is_idle() -> None:
    pool = pool_of(10)
    assert serve(pool, [1, 2, 3]) == 0
    assert pool.match([1, 2, 3, 4]) == 3
    assert pool.cached == 3
    assert pool.usage == 0.0


def test_pinned_block_is_never_evicted() -> None:
    pool = pool_of(4)
    serve(pool, [1, 2, 3])
    assert pool.pin([1, 2, 9], 1.0) == 2
    assert pool.available == 2
    assert not pool.allocate(3, 1.0)
    assert pool.match([1, 2, 3]) == 3, "a refused allocation changes nothing"
    assert pool.allocate(2, 1.0)
    assert pool.match([1, 2, 3]) == 2
    pool.release([1, 2], 2, 2.0)
    assert pool.usage == 0.0


def test_leaves_are_evicted_before_their_parents_and_the_oldest_path_first() -> None:
    events: list[BlockEvent] = []
    pool = pool_of(6, events)
    serve(pool, [1, 2, 3], 0.0)
    serve(pool, [1, 4, 5], 1.0)
    events.clear()
    assert pool.allocate(3, 2.0)
    assert events == [Removed((3, 2))]
    assert pool.match([1, 4, 5]) == 3
    pool.release([], 3, 2.0)


def test_concurrent_prefills_leave_a_duplicate_that_is_evicted_first() -> None:
    events: list[BlockEvent] = []
    pool = pool_of(6, events)
    for _ in range(2):
        assert pool.pin([1, 2], 0.0) == 0
        assert pool.allocate(2, 0.0)
    pool.commit([1, 2], None, 0.0)
    pool.commit([1, 2], None, 0.0)
    assert events == [Stored((1, 2), None), Stored((1, 2), None)]
    assert pool.in_use == 4
    assert [entry.copies for entry in pool.snapshot()] == [2, 2]
    pool.release([1, 2], 0, 1.0)
    assert pool.in_use == 2
    pool.release([1, 2], 0, 1.0)
    assert pool.in_use == 0
    events.clear()
    assert pool.allocate(4, 2.0)
    assert events == [Removed((1, 2))]
    assert pool.match([1, 2]) == 2, "the hash stays cached while a copy is left"


def test_duplicate_of_an_unused_block_is_evictable_while_its_request_runs() -> None:
    pool = pool_of(4)
    assert pool.allocate(2, 0.0)
    assert pool.allocate(2, 0.0)
    pool.commit([1, 2], None, 0.0)
    pool.release([1, 2], 0, 0.0)
    pool.commit([1, 2], None, 1.0)
    assert pool.in_use == 2
    assert pool.allocate(2, 1.0)
    pool.release([1, 2], 2, 2.0)


def test_output_blocks_join_the_run_of_their_request() -> None:
    pool = pool_of(50)
    assert pool.allocate(40, 0.0)
    pool.commit([1, 2], None, 0.0)
    for block in range(3, 30):
        pool.commit([block], block - 1, float(block))
    assert len(list(pool.tree.runs())) == 1
    pool.release(list(range(1, 30)), 11, 40.0)
    assert pool.usage == 0.0


def test_two_requests_continue_the_same_prompt() -> None:
    pool = pool_of(20)
    assert pool.allocate(10, 0.0)
    pool.commit([1, 2], None, 0.0)
    assert pool.pin([1, 2], 0.0) == 2
    pool.commit([3], 2, 0.0)
    pool.commit([4], 2, 0.0)
    assert sorted(run.hashes for run in pool.tree.runs()) == [[1, 2], [3], [4]]
    pool.release([1, 2, 3], 0, 1.0)
    assert pool.in_use == 3 + 6
    pool.release([1, 2, 4], 6, 1.0)
    assert pool.in_use == 0


def test_request_may_hold_a_part_of_a_run_that_another_extends() -> None:
    pool = pool_of(20)
    assert pool.allocate(10, 0.0)
    pool.commit([1, 2, 3, 4], None, 0.0)
    pool.commit([1, 2], None, 0.0)
    pool.commit([5], 4, 0.0)
    pool.commit([6], 2, 0.0)
    assert pool.match([1, 2, 3, 4, 5]) == 5
    assert pool.match([1, 2, 6]) == 3
    pool.release([1, 2, 3, 4, 5], 0, 1.0)
    pool.release([1, 2, 6], 2, 1.0)
    assert pool.in_use == 0


def test_snapshot_lists_parents_before_children() -> None:
    pool = pool_of(20)
    serve(pool, [1, 2, 3])
    serve(pool, [1, 4])
    entries = list(pool.snapshot())
    assert CachedBlock(4, 1, 1) in entries
    seen: set[int | None] = {None}
    for entry in entries:
        assert entry.parent in seen
        seen.add(entry.block)
    assert seen == {None, 1, 2, 3, 4}


def test_clear_publishes_and_forgets() -> None:
    events: list[BlockEvent] = []
    pool = pool_of(5, events)
    serve(pool, [1, 2])
    pool.clear()
    assert events[-1] == Cleared()
    assert pool.match([1]) == 0
    assert serve(pool, [1, 2, 3, 4, 5]) == 0


def test_misuse_of_the_contract_is_an_error() -> None:
    pool = pool_of(5)
    serve(pool, [1, 2])
    with pytest.raises(StateError, match="not cached"):
        pool.release([7], 0, 0.0)
    with pytest.raises(StateError, match="no request's"):
        pool.release([1, 2], 0, 0.0)
    with pytest.raises(StateError, match="anonymous"):
        pool.commit([3], None, 0.0)
    with pytest.raises(StateError, match="anonymous"):
        pool.release([], 1, 0.0)
    assert pool.pin([1], 0.0) == 1
    with pytest.raises(StateError, match="in use"):
        pool.clear()
    with pytest.raises(ConfigurationError, match="capacity"):
        pool_of(0)


def test_error_of_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="Lru"):
        make_policy("Mru", capacity=5, rng=random.Random(1))
    with pytest.raises(ConfigurationError, match="Lru"):
        make_policy("Lru", capacity=5, rng=random.Random(1), nonsense=3)
