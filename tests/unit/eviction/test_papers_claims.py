"""The papers' claims about eviction, on their own constructions and workloads, in the size of a unit test."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

from plumage.blocks.pool import BlockPool
from plumage.eviction import make_policy
from plumage_bench.benches.eviction.adversary import harmonic, measure
from plumage_bench.benches.eviction.replay import policy_for, replay
from plumage_bench.benches.eviction.workloads import Workload, few_shot, gsp_worst_order, multi_turn

SEEDS = (1, 2, 3)


def some_of(work: Workload) -> Workload:
    return replace(work, prompts=work.prompts[:1500])


def ratio(work_of: object, policy: str) -> float:
    assert callable(work_of)
    works = [(seed, work_of(seed)) for seed in SEEDS]
    return fmean(replay(work, policy_for(policy, work, seed)).hit_ratio for seed, work in works)


def test_construction_c1_leaf_lru_is_linear_and_rlt_logarithmic() -> None:
    for n in (8, 24):
        runs = [measure(n, seed) for seed in SEEDS]
        assert all(0.95 * n < run.loop_lru <= n for run in runs)
        assert fmean(run.loop_rlt for run in runs) < 1.5 * harmonic(n)


def test_construction_c2_nobody_beats_the_harmonic_number_and_rlt_reaches_it() -> None:
    runs = [measure(32, seed) for seed in range(6)]
    assert 0.75 < fmean(run.random_rlt for run in runs) / harmonic(32) < 1.35
    assert 0.75 < fmean(run.random_lru for run in runs) / harmonic(32) < 1.35


def test_rlt_reaches_the_hit_ratio_of_the_paper_in_the_worst_order() -> None:
    assert 0.40 <= ratio(lambda seed: gsp_worst_order(seed, 12_500), "Rlt") <= 0.44
    below = gsp_worst_order(1, 11_700)
    assert replay(below, policy_for("Lru", below, 1)).hit_ratio < 0.07, "leaf-LRU, just below the length of the loop"


def test_hotness_gains_on_shared_prefixes_and_costs_conversations_nothing() -> None:
    def suite(seed: int) -> object:
        return some_of(few_shot(seed, "bbh", 0.95))

    lru = ratio(suite, "Lru")
    assert ratio(suite, "Hotness") >= 1.05 * lru
    assert ratio(suite, "HotnessPaper") >= 1.02 * lru

    def turns(seed: int) -> object:
        return multi_turn(seed, 12_500)

    lru = ratio(turns, "Lru")
    assert ratio(turns, "Hotness") >= 0.98 * lru
    assert ratio(turns, "Rlt") >= 0.92 * lru


def test_seed_repeats_the_evictions() -> None:
    work = some_of(few_shot(5, "bbh", 0.9))
    for policy in ("Rlt", "Hotness", "HotnessPaper"):
        assert replay(work, policy_for(policy, work, 5)) == replay(work, policy_for(policy, work, 5))


def test_rlt_pool_serves_from_a_full_cache_of_held_blocks() -> None:
    pool = BlockPool(4, make_policy("Rlt", capacity=4, rng=random.Random(1)))
    assert pool.allocate(4, 0.0)
    pool.commit([1, 2, 3, 4], None, 0.0)
    assert not pool.allocate(1, 1.0)
    pool.release([1, 2, 3, 4], 0, 2.0)
    assert pool.allocate(4, 3.0)
