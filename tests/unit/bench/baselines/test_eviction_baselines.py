"""Textbook caches choose as their definitions say, and none misses less than leaf-OPT."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.eviction_chains import misses, paths, serve

from plumage.blocks.pool import BlockPool
from plumage.errors import ConfigurationError
from plumage_bench.baselines.eviction import POLICY_NAMES, make_policy
from plumage_bench.baselines.eviction.belady import Belady, future_of
from plumage_bench.baselines.eviction.classic import Fifo, Lfu, Ttl
from plumage_bench.baselines.eviction.twoq import TwoQ


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(6, 25))
def test_no_policy_misses_less_than_leaf_opt(seed: int, capacity: int) -> None:
    chains = paths(seed, 50)
    best = misses(Belady(future_of(chains)), capacity, chains)
    for name in POLICY_NAMES:
        assert best <= misses(make_policy(name, capacity=capacity, rng=random.Random(seed)), capacity, chains), name


def test_lfu_keeps_the_most_used_block() -> None:
    pool = BlockPool(4, Lfu())
    for now, block in enumerate([1, 1, 1, 2, 2, 3, 4, 5, 6]):
        serve(pool, [block], float(now))
    assert pool.match([1]) == pool.match([2]) == 1
    assert pool.match([3]) == pool.match([4]) == 0


def test_fifo_ignores_use() -> None:
    pool = BlockPool(3, Fifo())
    for now, block in enumerate([1, 2, 3, 1, 1, 1, 4]):
        serve(pool, [block], float(now))
    assert pool.match([1]) == 0
    assert pool.match([2]) == 1


def test_ttl_evicts_expired_blocks_before_the_oldest() -> None:
    pool = BlockPool(3, Ttl(ttl=10.0))
    for block, now in ((1, 0.0), (2, 1.0), (3, 2.0), (1, 9.0)):
        serve(pool, [block], now)
    serve(pool, [4], 11.5)
    assert pool.match([2]) == 0, "unused for ten seconds"
    assert pool.match([1]) == 1
    serve(pool, [5], 11.6)
    assert pool.match([1]) == 0, "nothing expired: first in, first out"


def test_two_q_keeps_its_blocks_during_a_scan() -> None:
    pool = BlockPool(8, TwoQ(8))
    now = 0.0
    for block in (1, 100, 101, 102, 103, 104, 105, 106, 107, 1, 108, 109):
        serve(pool, [block], now)
        now += 1
    assert pool.match([1]) == 1, "it returned while it was remembered, so it is long-term"
    for block in range(200, 240):
        serve(pool, [block], now)
        now += 1
    assert pool.match([1]) == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [("Ttl", {"ttl": 0.0}), ("TwoQ", {"fifo_share": 1.5}), ("Ttl", {"ttl": None}), ("Lfu", {"share": 3})],
)
def test_wrong_option_is_named(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        make_policy(name, capacity=10, rng=random.Random(1), **options)
