"""The hotness-aware cuckoo filter: exact where possible, its errata, and its measured error."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.blocks.pool import BlockPool
from plumage.errors import ConfigurationError
from plumage.eviction import make_policy
from plumage.hotness.cuckoo import SLOTS, CuckooFilter, mix64
from plumage.hotness.node_uses import Layered, NodeUses
from plumage.hotness.record import NodeRecord, Recorded


def filter_of(capacity: int, **options: Any) -> CuckooFilter:
    return CuckooFilter(capacity, random.Random(1), **options)


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(st.integers(0, 60), max_size=200), interval=st.integers(1, 20))
def test_wide_filter_counts_as_a_dictionary_while_it_is_not_full(keys: list[int], interval: int) -> None:
    table = filter_of(256, fingerprint_bits=32, frequency_bits=16, aging_interval=interval)
    model: dict[int, list[int]] = {}
    for request, key in enumerate(keys, 1):
        frequency = model.get(key, [0, 0])[0] + 1
        model[key] = [frequency, 255]
        assert table.touch(key, depth=2) == NodeUses(frequency, 255, 2)
        assert table.tick() == (request % interval == 0)
        if request % interval == 0:
            for entry in model.values():
                entry[1] = max(0, entry[1] - 1)
    assert {key: table.get(key) for key in range(61)} == {
        key: NodeUses(model[key][0], model[key][1], 2) if key in model else None for key in range(61)
    }
    assert len(table) == len(model)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("turnover", [5, 1000])
@pytest.mark.parametrize("used", [1, 7, 4000])
def test_clock_without_an_interval_lasts_for_two_turnovers(bits: int, turnover: int, used: int) -> None:
    table = filter_of(64, clock_bits=bits, aging_interval=None, turnover=turnover)
    table.touch(1)
    blocks, clocks = 0, [table.max_age]
    while clocks[-1]:
        table.tick(5, used)
        blocks += used
        uses = table.get(1)
        assert uses is not None
        clocks.append(uses.clock)
    assert clocks == sorted(clocks, reverse=True)
    step = max(1, 2 * turnover // 15) + 3  # of the coarsest clock
    assert 2 * turnover - step <= blocks < 2 * turnover + step + used


def test_erratum_two_buckets_of_a_node_differ() -> None:
    """As printed, b2 = hash(f) xor hash(f) is bucket 0 for every node, so four slots would be the whole filter."""
    table = filter_of(4096)
    marks = [(mix64(key) >> 32) & table._fingerprint_mask or 1 for key in range(2000)]
    firsts = [mix64(key) & table._bucket_mask for key in range(2000)]
    places = [(first, table._other(first, mark)) for first, mark in zip(firsts, marks, strict=True)]
    assert len({second for _, second in places}) > 500
    assert sum(first != second for first, second in places) > 1900
    for (first, second), mark in zip(places, marks, strict=True):
        assert table._other(second, mark) == first, "from either bucket the other one is found"


def test_chain_counts_as_its_nodes_one_by_one() -> None:
    chain, single = filter_of(64, depth_bits=4), filter_of(64, depth_bits=4)
    for keys, depth in (([3, 1, 4, 1, 5], 1), ([9, 2, 6], 14), ([], 3)):
        chain.touch_chain(keys, depth)
        for place, key in enumerate(keys):
            single.touch(key, depth + place)
    assert [chain.get(key) for key in range(10)] == [single.get(key) for key in range(10)]
    assert chain.get(6) == NodeUses(1, 255, 15), "a depth stops at its widest"


def test_full_counter_stays_full_and_changes_no_other() -> None:
    table = filter_of(64, frequency_bits=4, fingerprint_bits=16)
    for key, uses in ((1, 8), (2, 4), (3, 40)):
        for _ in range(uses):
            table.touch(key)
    assert [table.get(key) for key in (3, 1, 2)] == [NodeUses(15, 255), NodeUses(8, 255), NodeUses(4, 255)]


@pytest.mark.parametrize("bits", [4, 8, 16])
@settings(max_examples=50, deadline=None)
@given(
    uses=st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.integers(1, 40)), max_size=40),
    interval=st.integers(1, 50),
)
def test_hotness_of_a_key_depends_on_its_own_uses_and_the_time(
    bits: int, uses: list[tuple[int, int]], interval: int
) -> None:
    """In a filter with enough room, other keys do not change the hotness of key 3."""
    options = {"fingerprint_bits": 32, "frequency_bits": bits, "aging_interval": interval}
    crowded, alone = filter_of(64, **options), filter_of(64, **options)
    for key, times in uses:
        for _ in range(times):
            crowded.touch(key)
            if key == 3:
                alone.touch(key)
            assert crowded.tick() == alone.tick()
        assert crowded.get(3) == alone.get(3)


def test_warm_prefix_keeps_its_count_beside_one_that_every_request_uses() -> None:
    table = filter_of(256, fingerprint_bits=16)
    for request in range(6_000):
        table.tick()
        table.touch(1)
        if request % 60 == 0:
            table.touch(2, depth=2)
    system, warm = table.get(1), table.get(2)
    assert system is not None
    assert warm is not None
    assert (system.frequency, warm.frequency) == (6_000, 100)


def test_erratum_frequency_outlives_eviction() -> None:
    record = NodeRecord(CuckooFilter(256, random.Random(1), fingerprint_bits=16))
    pool = BlockPool(3, Recorded(make_policy("Lru", capacity=3, rng=random.Random(1)), record))
    for now in range(12):
        for prompt in ([1, 2, 3], [4, 5, 6]):
            assert pool.pin(prompt, now) == 0, "each evicts the other"
            assert pool.allocate(3, now)
            pool.commit(prompt, None, now)
            pool.release(prompt, 0, now)
    uses = record.get(3)
    assert uses is not None
    assert uses.frequency == 12


def test_erratum_full_filter_drops_its_coldest_and_takes_the_new_node() -> None:
    table = filter_of(64, fingerprint_bits=16, max_moves=16)
    hot = list(range(20))
    for _ in range(5):
        for key in hot:
            table.touch(key)
    for key in range(1000, 1400):
        assert table.touch(key) == NodeUses(1, 255, 1)
        assert table.get(key) is not None
    assert table.dropped > 300
    assert len(table) <= table.slots
    assert sum((table.get(key) or NodeUses(0, 0)).frequency == 5 for key in hot) >= 18


def test_filter_fills_to_ninety_percent_before_it_drops_anything() -> None:
    table = filter_of(4096, fingerprint_bits=16)
    for key in range(int(table.slots * 0.9)):
        table.touch(key)
    assert table.dropped == 0


@pytest.mark.parametrize(("bits", "low", "high"), [(8, 0.015, 0.045), (12, 0.0005, 0.004), (16, 0.0, 0.0005)])
def test_measured_false_positive_rate(bits: int, low: float, high: float) -> None:
    """About 8

    2^bits in a full table: some 3 % with the paper's eight bits.
    """
    table = filter_of(8192, fingerprint_bits=bits)
    for key in range(int(table.slots * 0.95)):
        table.touch(key)
    strangers = range(10**6, 10**6 + 20_000)
    rate = sum(table.get(key) is not None for key in strangers) / len(strangers)
    assert low <= rate <= high


def test_memory_is_a_few_bytes_per_node() -> None:
    assert filter_of(8192).bytes == 5 * 8192
    assert filter_of(8000, fingerprint_bits=16, frequency_bits=8).bytes == 5 * 8192
    assert filter_of(1).slots == SLOTS


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 0},
        {"capacity": 4, "fingerprint_bits": 0},
        {"capacity": 4, "clock_bits": 33},
        {"capacity": 4, "aging_interval": 0},
        {"capacity": 4, "aging_interval": None},
        {"capacity": 4, "aging_interval": None, "turnover": 0},
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        CuckooFilter(rng=random.Random(1), **options)


def test_hotness_moves_along_when_a_run_is_split_or_cut() -> None:
    record = NodeRecord(CuckooFilter(256, random.Random(1), fingerprint_bits=32))
    pool = BlockPool(10, Recorded(make_policy("Lru", capacity=10, rng=random.Random(1)), record))

    def serve(prompt: list[int]) -> None:
        known = pool.pin(prompt, 0.0)
        assert pool.allocate(len(prompt) - known, 0.0)
        pool.commit(prompt[known:], prompt[known - 1] if known else None, 0.0)
        pool.release(prompt, 0, 0.0)

    for _ in range(3):
        serve([1, 2, 3, 4])
    serve([1, 2, 9])
    frequency = {key: (record.get(key) or NodeUses(0, 0)).frequency for key in (2, 4, 9)}
    assert frequency == {2: 4, 4: 3, 9: 1}
    assert pool.allocate(6, 0.0)
    assert (record.get(3) or NodeUses(0, 0)).frequency == 3, "the run lost block 4 and ends with 3 now"
    assert (record.get(4) or NodeUses(0, 0)).frequency == 3


def test_depths_count_nodes_from_the_root_for_any_branching() -> None:
    record = NodeRecord(CuckooFilter(4096, random.Random(1), fingerprint_bits=32))
    pool = BlockPool(500, Recorded(make_policy("Lru", capacity=500, rng=random.Random(1)), record))
    rng, prompts = random.Random(4), [[1]]
    for block in range(2, 150):
        prompt = rng.choice(prompts)
        prompts.append([*prompt[: rng.randrange(len(prompt) + 1)], block, block + 1000])
        known = pool.pin(prompts[-1], 0.0)
        assert pool.allocate(len(prompts[-1]) - known, 0.0)
        pool.commit(prompts[-1][known:], prompts[-1][known - 1] if known else None, 0.0)
        pool.release(prompts[-1], 0, 0.0)
        run = pool.tree.run_ending(prompts[-1][-1])
        uses = record.get(run.hashes[-1])
        assert uses is not None
        assert uses.depth == run.depth


def test_mixing_spreads_neighbours() -> None:
    low_bits = {mix64(key) & 0xFF for key in range(2000)}
    assert len(low_bits) > 250


def test_pool_wide_hotness_comes_first_and_the_local_one_fills_in() -> None:
    fleet, local = filter_of(16, fingerprint_bits=16), filter_of(16, fingerprint_bits=16)
    local.touch(1)
    local.touch(2)
    fleet.put(2, NodeUses(90, 200))
    both = Layered(fleet, local)
    assert both.get(1) == NodeUses(1, 255)
    assert both.get(2) == NodeUses(90, 200)
    assert both.get(3) is None
