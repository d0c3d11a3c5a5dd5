"""A shadow cache finds what a real one of its weight would find, and the weight follows the best shadow."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool
from plumage.eviction.hotness_formula import Hotness
from plumage.eviction.lru import Lru
from plumage.eviction.shadows import Shadow, Shadows


def uses(seed: int, count: int) -> list[int]:
    """Uses of blocks, some of them much more often than the rest."""
    rng = random.Random(seed)
    return [int(60 * rng.random() ** 3) for _ in range(count)]


def worths(blocks: Sequence[int]) -> list[tuple[int, int, float]]:
    """Each use as block, time of the previous use (-1: the first), and log2 of the frequency up to it."""
    last: dict[int, int] = {}
    frequency: dict[int, int] = {}
    seen = []
    for time, block in enumerate(blocks):
        seen.append((block, last.get(block, -1), math.log2(max(1, frequency.get(block, 0)))))
        last[block] = time
        frequency[block] = frequency.get(block, 0) + 1
    return seen


def shadow_hits(blocks: Sequence[int], room: int, weight: float) -> list[bool]:
    shadow = Shadow(weight)
    hits = []
    for time, (_, used, worth) in enumerate(worths(blocks)):
        if used < 0:
            shadow.size += 1
            hits.append(False)
            worth = 0.0
        else:
            hits.append(shadow.take(used, worth, 1) == 1)
            worth = math.log2(round(2**worth) + 1)
        shadow.put(time, worth, 1)
        shadow.trim(room)
        assert shadow.size <= room
    return hits


def slow_hits(blocks: Sequence[int], room: int, weight: float) -> list[bool]:
    """A cache that keeps every score and drops the lowest."""
    scores: dict[int, float] = {}
    frequency: dict[int, int] = {}
    hits = []
    for time, block in enumerate(blocks):
        hits.append(block in scores)
        frequency[block] = frequency.get(block, 0) + 1
        scores[block] = time + weight * math.log2(frequency[block])
        if len(scores) > room:
            del scores[min(scores, key=scores.__getitem__)]
    return hits


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), room=st.integers(2, 30), weight=st.sampled_from([0.0, 7.31, 41.77, 1000.123]))
def test_shadow_hits_exactly_where_a_cache_hits(seed: int, room: int, weight: float) -> None:
    blocks = uses(seed, 300)
    assert shadow_hits(blocks, room, weight) == slow_hits(blocks, room, weight)


def test_blocks_with_one_score_are_dropped_one_by_one() -> None:
    shadow = Shadow(0.0)
    shadow.size = 30
    shadow.put(1.0, 0.0, 20)
    shadow.put(2.0, 0.0, 10)
    shadow.trim(18)
    assert shadow.take(1.0, 0.0, 5) == 5, "the first blocks of the chain are the last to go"
    assert shadow.take(1.0, 0.0, 15) == 3
    assert shadow.size == 30


def test_order_stays_as_small_as_the_cache() -> None:
    shadow = Shadow(1000.0)
    shadow.size = 1
    for time in range(20_000):
        shadow.put(time, 0.0, 1)
        assert shadow.take(time, 0.0, 1) == 1
    assert len(shadow._order) <= 1100


def hits(policy: EvictionPolicy, capacity: int, seed: int) -> list[int]:
    """Chains of a small tree, one request at a time."""
    rng, pool, found = random.Random(seed), BlockPool(capacity, policy), []
    for now in range(80):
        path, chain = 1, []
        for _ in range(rng.randint(1, 6)):
            path = path * 4 + rng.randint(0, 2)
            chain.append(path)
        known = pool.pin(chain, now)
        assert pool.allocate(len(chain) - known, now)
        pool.commit(chain[known:], chain[known - 1] if known else None, now)
        pool.release(chain, 0, now)
        found.append(known)
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(6, 30))
def test_hotness_without_weight_is_leaf_lru(seed: int, capacity: int) -> None:
    assert hits(Hotness(capacity, (0.0,)), capacity, seed) == hits(Lru(), capacity, seed)


def test_weight_changes_only_once_another_shadow_has_more_hits() -> None:
    shadows = Shadows(32, (0.0, 4.0), window=8.0)
    shadows.new(40)
    shadows.idle(40, 0.0, 8, 32)
    shadows.idle(40, 2.0, 32, 32)  # the eight used once are evicted; under weight 0 any eight of the forty
    assert not shadows.choose(40), "no shadow has hits yet"
    assert shadows.weight == 0
    shadows.idle(80, 0.0, 0, 32)
    shadows.new(32)
    shadows.idle(100, 0.0, 32, 32)  # a scan: it empties the cache without weight
    shadows.again(40, 2.0, 32)
    assert not shadows.choose(41), "too soon after the last check"
    assert shadows.choose(140)
    assert shadows.weight == 4 * 32
    assert not shadows.choose(180)


def test_old_hits_age() -> None:
    """Frequent blocks hit at first. Later the recent ones hit, but in total less than the first did."""
    shadows = Shadows(32, (0.0, 4.0), window=1.0)
    shadows.new(32)
    shadows.idle(10, 2.0, 32, 32)
    shadows.new(32)
    shadows.idle(50, 0.0, 32, 32)  # both fill a cache: without weight the later stays, with it the more frequent
    shadows.again(10, 2.0, 32)
    assert shadows.choose(64)
    shadows.idle(64, 2.32, 32, 32)
    shadows.new(8)
    shadows.idle(264, 0.0, 8, 32)
    shadows.again(264, 0.0, 8)
    assert shadows.choose(264), "32 hits of two windows ago weigh less than 8 now"
    assert shadows.weight == 0
