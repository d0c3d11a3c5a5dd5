"""Replays of a trace against slow models of the caches, and the comparison of their results."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

import pytest

from plumage.errors import ConfigurationError
from plumage.eviction.lru import Lru
from plumage_bench.benches.trace import libcache
from plumage_bench.benches.trace.hitratios import (
    BOUND,
    OURS,
    SHARES,
    Contender,
    Margin,
    Ratio,
    capacities,
    margin,
    measure,
    over_seeds,
)
from plumage_bench.benches.trace.mooncake import BLOCK, TracedRequest
from plumage_bench.benches.trace.onecache import belady_hits, hotness_hits, replay
from plumage_bench.benches.trace.processes import replay_all
from plumage_bench.benches.trace.synthetic import synthetic_trace

TRACE = synthetic_trace(700, 11)
CHAINS = [request.full_blocks for request in TRACE]


def slow_leaf_lru(chains: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """Block by block: a leaf is a block without a cached child; the least recently used leaf is evicted."""
    used: dict[int, int] = {}
    parent: dict[int, int | None] = {}
    hits = []
    for now, whole in enumerate(chains):
        chain = whole[:capacity]
        known = 0
        while known < len(chain) and chain[known] in used:
            known += 1
        for block in chain[:known]:
            used[block] = now
        while len(used) + len(chain) - known > capacity:
            inner = {parent[block] for block in used}
            leaves = [block for block in used if block not in inner and used[block] < now]
            del used[min(leaves, key=lambda block: used[block])]
        for index in range(known, len(chain)):
            used[chain[index]] = now
            parent[chain[index]] = chain[index - 1] if index else None
        hits.append(known)
    return hits


def slow_lru(chains: Sequence[Sequence[int]], capacity: int) -> list[int]:
    cache: OrderedDict[int, None] = OrderedDict()
    return [sum(_touch(cache, block, capacity) for block in chain) for chain in chains]


def _touch(cache: OrderedDict[int, None], block: int, capacity: int) -> bool:
    known = block in cache
    cache[block] = None
    cache.move_to_end(block)
    if len(cache) > capacity:
        cache.popitem(last=False)
    return known


@pytest.mark.parametrize("capacity", [3, 60, 400])
def test_cache_agrees_with_a_slow_leaf_lru(capacity: int) -> None:
    chains = CHAINS[:250]
    assert replay(chains, Lru(), capacity) == slow_leaf_lru(chains, capacity)


@pytest.mark.parametrize("capacity", [60, 400])
def test_lru_of_libcachesim_agrees_with_a_slow_lru(capacity: int) -> None:
    assert libcache.hits("LRU", CHAINS, capacity) == slow_lru(CHAINS, capacity)


@pytest.mark.parametrize("name", libcache.NAMES)
def test_every_policy_of_libcachesim_runs_and_stays_below_belady(name: str) -> None:
    found = sum(libcache.hits(name, CHAINS, 300))
    assert 0 < found <= sum(libcache.hits(libcache.OFFLINE, CHAINS, 300))


def test_no_online_policy_beats_leaf_opt_and_nothing_is_evicted_from_a_large_cache() -> None:
    assert sum(hotness_hits(CHAINS, 300)) <= sum(belady_hits(CHAINS, 300))
    everything = sum(map(len, CHAINS)) - len({block for chain in CHAINS for block in chain})
    assert sum(hotness_hits(CHAINS, 100_000)) == everything


def test_partial_block_counts_as_an_access_that_hits_in_admitting_caches_only() -> None:
    request = TracedRequest(0.0, 2 * BLOCK + 1, 1, (1, 2, 3))
    filler = [TracedRequest(0.0, 5000 * BLOCK, 1, tuple(range(10 * n, 10 * n + 5000))) for n in (1000, 9000)]
    trace = [*filler, request, request]
    accesses = 10_000 + 6
    again = [measure(trace, Contender("LRU", partial))[0.20].whole * accesses for partial in (False, True)]
    assert again == pytest.approx([2, 3])


def test_ratios_count_both_halves_over_all_accesses() -> None:
    trace = synthetic_trace(1500, 4)
    whole = measure(trace, Contender("LRU", partial=True))
    half = len(trace) // 2
    distinct = len({block for request in trace for block in request.blocks})
    for share in SHARES:
        hits = slow_lru([request.blocks for request in trace], int(distinct * share))
        accesses = [len(request.blocks) for request in trace]
        assert whole[share].whole == sum(hits) / sum(accesses)
        assert whole[share].second == sum(hits[half:]) / sum(accesses[half:])


def test_naming_changes_names_only() -> None:
    trace = synthetic_trace(1500, 4)
    plain = measure(trace, Contender(BOUND, partial=False))
    assert measure(trace, Contender(BOUND, partial=False, naming=7)) == plain


def test_margin_is_to_the_best_at_that_size() -> None:
    low, high = ({share: Ratio(value, 2 * value) for share in SHARES} for value in (0.1, 0.2))
    ours = {share: Ratio(0.25, 0.3) for share in SHARES}
    assert margin(ours, {"A": low, "B": high}, 0.01, second=False) == Margin("B", 0.2, 0.25)
    assert margin(ours, {"A": low, "B": high}, 0.01, second=True).over == pytest.approx(0.75)
    assert over_seeds([low, high])[0.03].whole == pytest.approx(0.15)
    assert over_seeds([low, high], min)[0.03] == Ratio(0.1, 0.2)


def test_trace_too_small_to_compare_on_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="distinct blocks"):
        capacities(TRACE[:50])


def test_two_processes_give_the_result_of_one() -> None:
    trace = synthetic_trace(1500, 4)
    jobs = [Contender(name, partial=False) for name in ("LRU", "GLCache", OURS)]
    random.Random(1).shuffle(jobs)
    counted: list[int] = []
    results = replay_all(measure, trace, jobs, counted.append)
    assert list(results) == jobs
    assert sum(counted) == len(jobs)
    assert results[Contender("LRU", partial=False)] == measure(trace, Contender("LRU", partial=False))
