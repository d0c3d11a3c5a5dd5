"""Eviction by hotness, where somebody else has seen more uses than this cache."""

from __future__ import annotations

import random

import pytest

from plumage.blocks.pool import BlockPool
from plumage.eviction.hotness import Hotness

CAPACITY = 40


def serve(pool: BlockPool, blocks: list[int], now: float) -> int:
    known = pool.pin(blocks, now)
    assert pool.allocate(len(blocks) - known, now)
    pool.commit(blocks[known:], blocks[known - 1] if known else None, now)
    pool.release(blocks, 0, now)
    return known


def hits(policy: Hotness, seed: int) -> int:
    """Prefixes of eight blocks, asked for by Zipf's law of which this cache sees a few hundred, each with a tail."""
    rng = random.Random(seed)
    pool, found = BlockPool(CAPACITY, policy), 0
    for now in range(300):
        prefix = rng.choices(range(20), [1.0 / (rank + 1) for rank in range(20)])[0]
        found += serve(pool, [prefix * 8 + 1 + block for block in range(8)] + [10_000 + 2 * now], float(now))
    return found


def told(scale: float) -> Hotness:
    policy = Hotness(CAPACITY)
    policy.pooled = lambda name: max(1.0, scale / ((name - 1) // 8 + 1)) if name < 10_000 else None
    return policy


@pytest.mark.parametrize("seed", range(5))
def test_who_knows_what_all_ask_for_finds_more(seed: int) -> None:
    assert hits(told(200.0), seed) > hits(Hotness(CAPACITY), seed)


def test_of_two_used_alike_here_what_others_use_stays() -> None:
    for hot, cold in ((1, 101), (101, 1)):
        policy = Hotness(4, weights=[4.0])
        policy.pooled = {hot: 64.0}.get
        pool = BlockPool(4, policy)
        serve(pool, [hot, hot + 1], 0.0)
        serve(pool, [cold, cold + 1], 1.0)
        serve(pool, [201], 2.0)
        assert pool.pin([hot, hot + 1], 3.0) == 2


def test_fewer_uses_elsewhere_take_nothing_from_ours() -> None:
    plain, less = Hotness(CAPACITY), Hotness(CAPACITY)
    less.pooled = lambda name: 1.0
    assert hits(plain, 1) == hits(less, 1)


def test_a_word_beyond_a_frequencys_eight_bits_counts_as_the_most() -> None:
    much, most = told(1e9), told(1e12)
    assert hits(much, 2) == hits(most, 2)
