"""What every eviction policy keeps in a pool, of the product and of the baselines."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.eviction_chains import paths, serve

from plumage.blocks.pool import BlockPool
from plumage.errors import StateError
from plumage.eviction.base import ScoredPolicy
from plumage.eviction.hotness_formula import Hotness
from plumage.eviction.hotness_paper import HotnessPaper
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.record import NodeRecord
from plumage_bench.baselines.eviction import POLICY_NAMES, make_policy


def exact_hotness() -> HotnessPaper:
    """A filter so wide that it neither confuses nor drops nodes, and a formula under which a partly evicted node keeps
    its rank.
    """
    record = NodeRecord(CuckooFilter(256, random.Random(1), fingerprint_bits=32, aging_interval=7))
    return HotnessPaper(record, "frequency + clock")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(6, 30))
@pytest.mark.parametrize("name", ["Hotness", "HotnessPaper", "Lfu", "Fifo"])
def test_victim_has_the_lowest_score_of_all_evictable_leaves(name: str, seed: int, capacity: int) -> None:
    policy = exact_hotness() if name == "HotnessPaper" else make_policy(name, capacity=capacity, rng=random.Random(1))
    assert isinstance(policy, ScoredPolicy | Hotness)
    pool = BlockPool(capacity, policy)
    for now, blocks in enumerate(paths(seed, 40)):
        serve(pool, blocks, float(now))
        victim = policy.victim(float(now))
        assert victim in pool.tree.leaves
        assert policy.score(victim) == min(policy.score(leaf) for leaf in pool.tree.leaves)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_cleared_pool_starts_again(name: str) -> None:
    pool = BlockPool(12, make_policy(name, capacity=12, rng=random.Random(1)))
    for now, blocks in enumerate(paths(1, 30)):
        serve(pool, blocks, float(now))
    pool.clear()
    with pytest.raises(StateError, match="no evictable leaf"):
        pool.policy.victim(0.0)
    for now, blocks in enumerate(paths(2, 30)):
        serve(pool, blocks, float(now))


@pytest.mark.parametrize("name", ["Hotness", "TwoQ", "Arc"])
def test_remembered_prefix_and_new_tail_are_two_runs_for_any_commit_order(name: str) -> None:
    pool = BlockPool(12, make_policy(name, capacity=12, rng=random.Random(1)))
    for now, tail in enumerate((50, 60, 70)):
        serve(pool, [1, 2, 3, 4, tail], float(now))
    assert pool.allocate(12, 5.0)
    pool.release([], 12, 5.0)
    assert pool.allocate(6, 6.0)
    pool.commit([1, 2], None, 6.0)
    assert pool.allocate(3, 6.0), "another request comes between the chunks of this one"
    pool.commit([90, 91, 92], None, 6.0)
    pool.commit([3, 4], 2, 6.0)
    pool.commit([80, 81], 4, 6.0)
    runs = {tuple(run.hashes): run for run in pool.tree.runs()}
    assert (80, 81) in runs
    pool.release([1, 2, 3, 4, 80, 81], 0, 7.0)
    pool.release([90, 91, 92], 0, 7.0)
    if name == "Hotness":  # which keeps the frequency of the remembered prefix
        assert runs[80, 81].rank == 1
        assert next(run.rank for blocks, run in runs.items() if blocks[-1] == 4) >= 4
