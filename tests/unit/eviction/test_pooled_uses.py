"""Eviction by hotness where the pool has seen more uses than this cache."""

from __future__ import annotations

import random

import pytest
from support.eviction_chains import serve

from plumage.blocks.pool import BlockPool
from plumage.eviction.hotness_formula import Hotness

CAPACITY = 40


def hits(policy: Hotness, seed: int) -> int:
    """Hits on prefixes of eight blocks by Zipf's law, each with a tail. This cache sees a few hundred requests."""
    rng = random.Random(seed)
    pool, found = BlockPool(CAPACITY, policy), 0
    for now in range(300):
        prefix = rng.choices(range(20), [1.0 / (rank + 1) for rank in range(20)])[0]
        found += serve(pool, [prefix * 8 + 1 + block for block in range(8)] + [10_000 + 2 * now], float(now))
    return found


def pool_prior(scale: float) -> Hotness:
    policy = Hotness(CAPACITY)
    policy.pooled = lambda name: max(1.0, scale / ((name - 1) // 8 + 1)) if name < 10_000 else None
    return policy


@pytest.mark.parametrize("seed", range(5))
def test_pool_wide_hotness_finds_more(seed: int) -> None:
    assert hits(pool_prior(200.0), seed) > hits(Hotness(CAPACITY), seed)


def test_prefix_used_elsewhere_stays_among_equally_used() -> None:
    for hot, cold in ((1, 101), (101, 1)):
        policy = Hotness(4, weights=[4.0])
        policy.pooled = {hot: 64.0}.get
        pool = BlockPool(4, policy)
        serve(pool, [hot, hot + 1], 0.0)
        serve(pool, [cold, cold + 1], 1.0)
        serve(pool, [201], 2.0)
        assert pool.pin([hot, hot + 1], 3.0) == 2


def test_fewer_uses_elsewhere_reduce_nothing() -> None:
    plain, less = Hotness(CAPACITY), Hotness(CAPACITY)
    less.pooled = lambda name: 1.0
    assert hits(plain, 1) == hits(less, 1)


def test_frequency_beyond_eight_bits_counts_as_the_maximum() -> None:
    much, most = pool_prior(1e9), pool_prior(1e12)
    assert hits(much, 2) == hits(most, 2)
