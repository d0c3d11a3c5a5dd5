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
from plumage_bench.baselines.eviction.arc import Arc
from plumage_bench.baselines.eviction.belady import Belady, future_of
from plumage_bench.baselines.eviction.classic import Fifo, Lfu, Ttl
from plumage_bench.baselines.eviction.offload_plugins import Evoke, MarconiOffload
from plumage_bench.baselines.eviction.s3fifo import S3Fifo
from plumage_bench.baselines.eviction.sieve import Sieve
from plumage_bench.baselines.eviction.twoq import TwoQ
from plumage_bench.benches.trace import libcache


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


@pytest.mark.parametrize(("name", "share"), [("Sieve", 0.0), ("Arc", 0.003), ("S3Fifo", 0.02)])
@pytest.mark.parametrize("scans", [False, True])
def test_misses_are_about_those_of_libcachesim(name: str, share: float, scans: bool) -> None:
    """On blocks without a parent. Its S3-FIFO also remembers what the main queue evicted."""
    rng, names = random.Random(3), {"Sieve": "Sieve", "Arc": "ARC", "S3Fifo": "S3FIFO"}
    blocks = rng.choices(range(400), [1 / (place + 1) ** 0.8 for place in range(400)], k=20_000)
    if scans:
        blocks = [block if number % 3 else 1_000 + number for number, block in enumerate(blocks)]
    chains = [[block] for block in blocks]
    for capacity in (20, 50, 100):
        found = misses(make_policy(name, capacity=capacity, rng=rng), capacity, chains)
        expected = len(chains) - sum(libcache.hits(names[name], chains, capacity))
        assert found == pytest.approx(expected, rel=share), capacity


def test_sieve_keeps_what_was_used_since_the_hand_passed() -> None:
    pool = BlockPool(3, Sieve())
    for now, block in enumerate([1, 2, 3, 1, 4]):
        serve(pool, [block], float(now))
    assert [pool.match([block]) for block in (1, 2, 3, 4)] == [1, 0, 1, 1], "the hand passed 1 and stands before 3"
    serve(pool, [5], 5.0)
    assert [pool.match([block]) for block in (1, 3, 4, 5)] == [1, 0, 1, 1]


def test_s3_fifo_lets_a_scan_through_the_small_queue() -> None:
    pool = BlockPool(20, S3Fifo(20))
    for now, block in enumerate([1, 2, 1, 2, 1, 2, *range(100, 200)]):
        serve(pool, [block], float(now))
    assert pool.match([1]) == pool.match([2]) == 1


def test_arc_gives_the_list_more_room_whose_blocks_come_back() -> None:
    policy = Arc(4)
    pool = BlockPool(4, policy)
    for now, block in enumerate([1, 1, 2, 2, 10, 11, 12, 10]):
        serve(pool, [block], float(now))
    assert policy.target == 1.0, "10 came back after it was evicted from the first list"
    for now, block in enumerate([13, 1], start=8):
        serve(pool, [block], float(now))
    assert policy.target == 0.0, "1 came back after it was evicted from the second list"


def test_marconi_offload_keeps_shallow_and_often_used_blocks() -> None:
    pool = BlockPool(6, MarconiOffload(decay=0.0))
    for now, chain in enumerate([[1, 2, 3], [1, 2, 3], [4], [5, 6]]):
        serve(pool, chain, float(now))
    serve(pool, [7], 4.0)
    assert pool.match([5, 6]) == 1, "its second block was used once, at depth 2"
    serve(pool, [8], 5.0)
    assert pool.match([5]) == 0, "a leaf that lost a block loses all before another one does"
    serve(pool, [9], 6.0)
    assert pool.match([1, 2, 3]) == 2, "two uses at depth 3 are less than one at depth 1"
    assert [pool.match([block]) for block in (4, 7, 8, 9)] == [1] * 4


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), room=st.integers(2, 12), half_life=st.sampled_from([1.0, 7.0, 1000.0]))
def test_evoke_evicts_the_block_with_the_lowest_score(seed: int, room: int, half_life: float) -> None:
    rng, pool = random.Random(seed), BlockPool(room, Evoke(half_life))
    blocks = [int(30 * rng.random() ** 2) for _ in range(200)]
    last: dict[int, int] = {}
    hits: dict[int, int] = {}
    for now, block in enumerate(blocks):
        if block not in last and len(last) == room:
            scores = {one: 0.5 ** ((now - at - 1) / half_life) + 1 - 0.5 ** hits[one] for one, at in last.items()}
            going = min(scores, key=lambda one: (scores[one], last[one]))
            del last[going], hits[going]
        assert serve(pool, [block], float(now)) == (block in last)
        hits[block] = hits.get(block, -1) + 1
        last[block] = now


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("S3Fifo", {"small_share": 1.0}),
        ("Ttl", {"ttl": 0.0}),
        ("TwoQ", {"fifo_share": 1.5}),
        ("Ttl", {"ttl": None}),
        ("Lfu", {"share": 3}),
    ],
)
def test_wrong_option_is_named(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        make_policy(name, capacity=10, rng=random.Random(1), **options)
