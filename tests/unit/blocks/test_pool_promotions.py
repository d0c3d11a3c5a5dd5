"""The pool's side of a promotion: a victim is evicted at once, and a chain is added without a request."""

from __future__ import annotations

from plumage.blocks.events import BlockEvent, Removed, Stored
from plumage.blocks.pool import BlockPool
from plumage.eviction.lru import Lru


def make_pool(events: list[BlockEvent]) -> BlockPool:
    """Ten blocks, of which 1-2-3 are cached and unused, 7-8 in use."""
    pool = BlockPool(10, Lru(), events.append)
    for chain in ([1, 2, 3], [7, 8]):
        pool.allocate(len(chain), 0.0)
        pool.commit(chain, None, 0.0)
    pool.release([1, 2, 3], 0, 0.0)
    events.clear()
    return pool


def test_victim_is_an_unused_leaf() -> None:
    events: list[BlockEvent] = []
    pool = make_pool(events)
    assert not pool.discard(8)
    assert not pool.discard(2)
    assert not pool.discard(99)
    assert pool.discard(3)
    assert events == [Removed((3, 2, 1))]
    assert (pool.cached, pool.in_use, pool.free) == (2, 2, 8)


def test_promoted_chain_is_below_its_parent_and_evictable() -> None:
    events: list[BlockEvent] = []
    pool = make_pool(events)
    assert pool.bring([4, 5], 3, 1.0)
    assert events == [Stored((4, 5), 3)]
    assert pool.match([1, 2, 3, 4, 5]) == 5
    assert pool.in_use == 2
    assert pool.allocate(8, 2.0)
    assert pool.match([1, 2, 3, 4, 5]) == 0


def test_impossible_promotion_changes_nothing() -> None:
    events: list[BlockEvent] = []
    pool = make_pool(events)
    assert not pool.bring([4, 5], 99, 1.0)
    assert not pool.bring([20, 3], None, 1.0)
    assert not pool.bring(list(range(20, 26)), None, 1.0)
    assert not events
    assert (pool.cached, pool.in_use, pool.free) == (5, 2, 5)
