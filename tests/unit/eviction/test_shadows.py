"""A shadow cache finds what a real one of its weight would find, and the weight follows the best shadow."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool
from plumage.eviction.hotness_formula import Hotness
from plumage.eviction.lru import Lru
from plumage.eviction.shadows import Shadow, Shadows

NARROW = 2.0**-14  # buckets so narrow that each score has its own; a power of two, so that their bounds are exact


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


def shadow_hits(blocks: Sequence[int], room: int, weight: float, bucket: float) -> list[bool]:
    shadow = Shadow(weight, bucket)
    hits = []
    for time, (_, used, worth) in enumerate(worths(blocks)):
        if used < 0:
            shadow.size += 1
            hits.append(False)
            worth = 0.0
        else:
            hits.append(shadow.take(used, worth, 1))
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
def test_shadow_with_narrow_buckets_hits_exactly_where_a_cache_hits(seed: int, room: int, weight: float) -> None:
    blocks = uses(seed, 300)
    assert shadow_hits(blocks, room, weight, NARROW) == slow_hits(blocks, room, weight)


@pytest.mark.parametrize("weight", [0.0, 8.0, 64.0])
def test_shadow_with_wide_buckets_hits_nearly_as_often(weight: float) -> None:
    blocks, room = uses(5, 20_000), 16
    wide, exact = (sum(hits) for hits in (shadow_hits(blocks, room, weight, 2.0), slow_hits(blocks, room, weight)))
    assert wide == pytest.approx(exact, rel=0.03)


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
