"""A ledger at its capacity: the coldest goes for a hotter one, and nothing of it is untrue."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.directory import ledger as module
from plumage.directory import schema
from plumage.directory.ledger import DIGEST_MASK, ENTRY_BYTES, MOST, Ledger, capacity_within
from plumage.directory.schema import BUCKETS, RECORD, Change, Tier


def test_a_ledger_that_is_full_lets_the_deepest_go_for_the_shallow() -> None:
    """A chain that is cut at its end stays readable."""
    ledger = Ledger(capacity=4)
    chain = [Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 7)]
    ledger.record(chain)
    assert (ledger.count, ledger.refused, ledger.displaced) == (4, 2, 0)
    changes, _, _ = schema.unpack_records(ledger.record([Change(100, Tier.GPU, 64)]))
    assert changes == [(4, Tier.GONE, 0), (100, Tier.GPU, 64)]
    assert ledger.record([Change(101, Tier.GPU, 256)]) == b"", "deeper than all that are held"
    assert (ledger.count, ledger.refused, ledger.displaced) == (4, 3, 1)


def test_what_was_used_more_goes_last_and_comes_back_when_it_is_found_hot() -> None:
    ledger = Ledger(capacity=4)
    ledger.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in (7, 8, 1, 2)])
    ledger.record([Change(3, Tier.GPU, 100), Change(4, Tier.GPU, 100)])
    changes, _, _ = schema.unpack_records(ranked(ledger, {7: 5, 8: 5}))
    assert {(chunk, tier) for chunk, tier, _ in changes[1::2]} == {(7, Tier.GPU), (8, Tier.GPU)}
    assert [tier for _, tier, _ in changes] == [Tier.GONE, Tier.GPU] * 2
    assert ledger.record([Change(9, Tier.GPU, 1), Change(10, Tier.GPU, 1), Change(11, Tier.GPU, 1)]) != b""
    left, _ = replay(ledger)
    assert {7, 8} <= left, "the rest goes for the new ones, these do not"
    ranked(ledger, {})
    ledger.record([Change(12, Tier.GPU, 1), Change(13, Tier.GPU, 1)])
    assert not {7, 8} & replay(ledger)[0], "hot no longer, and the deepest"


def test_what_was_left_out_comes_in_when_there_is_room() -> None:
    ledger = Ledger(capacity=3)
    ledger.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 7)])
    changes, _, _ = schema.unpack_records(
        ledger.record([Change(1, Tier.GONE), Change(2, Tier.GONE), Change(5, Tier.GONE)])
    )
    assert changes == [(1, Tier.GONE, 0), (2, Tier.GONE, 0), (4, Tier.GPU, 256), (6, Tier.GPU, 384)], "5 is gone"
    ledger.clear()
    assert ledger.record([Change(9, Tier.GONE)]) == b""
    assert replay(ledger) == (set(), 0)


def ranked(ledger: Ledger, uses: dict[int, int]) -> bytes:
    """Ranked to the end."""
    return b"".join(ledger.rank(uses))


def replay(ledger: Ledger) -> tuple[set[int], int]:
    """What a router reads in a snapshot: the chunks, and their sum."""
    buckets = (schema.unpack_bucket(ledger.bucket(number, 1))[1] for number in range(BUCKETS))
    held = {chunk for bucket in buckets for chunk, _ in RECORD.iter_unpack(bucket)}
    return held, sum(held) & DIGEST_MASK


def test_a_smaller_share_lets_the_coldest_go_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKED", 2)
    ledger = Ledger(capacity=9)
    ledger.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 11)])
    ranked(ledger, {9: 3})
    smaller = [schema.unpack_records(part)[0] for part in ledger.resize(4)]
    assert smaller == [[(8, 0, 0), (7, 0, 0)], [(6, 0, 0), (5, 0, 0)], [(4, 0, 0)]], "the deepest, and not the hot one"
    assert replay(ledger)[0] == {1, 2, 3, 9}
    larger = [len(schema.unpack_records(part)[0]) for part in ledger.resize(100)]
    assert sum(larger) == 6
    assert max(larger) == 2
    assert replay(ledger)[0] == set(range(1, 11)), "they come back"


def test_between_parts_of_a_ranking_the_ledger_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKED", 2)
    ledger = Ledger(capacity=4)
    ledger.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 11)])
    parts = ledger.rank({chunk: 20 - chunk for chunk in (5, 6, 7, 8, 9, 10)})
    next(parts)
    assert replay(ledger)[0] == {1, 2, 5, 6}, "two at a time"
    ledger.record([Change(7, Tier.GONE), Change(6, Tier.HOST, 384)])
    rest = [schema.unpack_records(part)[0] for part in parts]
    assert [len(part) for part in rest] == [2, 2], "one for another, in each part"
    assert replay(ledger)[0] == {5, 6, 8, 9}, "not what the engine dropped meanwhile"
    assert ledger.count == 4


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(1, 9)), max_size=8)
        | st.dictionaries(st.integers(0, 30), st.integers(1, 3), max_size=6)
        | st.integers(1, 12),
        max_size=30,
    ),
    st.integers(1, 12),
)
def test_a_full_ledger_stays_true_to_its_records(steps: list[Any], capacity: int) -> None:
    """Against sets: bounded, told by the records alone, none of it untrue, nothing left out while there is room."""
    ledger = Ledger(capacity)
    engine: dict[int, tuple[int, int]] = {}
    told: dict[int, tuple[int, int]] = {}
    for step in steps:
        if isinstance(step, dict):
            data = ranked(ledger, {spread(number): uses for number, uses in step.items()})
        elif isinstance(step, int):
            capacity = step
            data = b"".join(ledger.resize(capacity))
        else:
            changes = [Change(spread(number), tier, tokens) for number, tier, tokens in step]
            data = ledger.record(changes)
            for chunk, tier, tokens in changes:
                engine[chunk] = (tier, tokens)
        for chunk, tier, tokens in schema.unpack_records(data)[0]:
            assert (chunk in told) or tier, "nothing goes that was not there"
            told[chunk] = (tier, tokens)
            if not tier:
                del told[chunk]
        engine = {chunk: state for chunk, state in engine.items() if state[0]}
        assert told.items() <= engine.items()
        assert len(told) == min(capacity, len(engine)) == ledger.count
        assert replay(ledger) == (set(told), ledger.digest)


def spread(number: int) -> int:
    """A small number as a chunk anywhere among the buckets."""
    return number * 0x9E3779B97F4A7C15 & DIGEST_MASK


def test_hot_chains_outlive_a_flood_many_times_the_ledgers_size() -> None:
    rng = random.Random(3)
    hot = [[rng.getrandbits(64) for _ in range(40)] for _ in range(25)]
    ledger = Ledger(capacity=10_000)
    ledger.record(Change(chunk, Tier.GPU, 64 * depth) for chain in hot for depth, chunk in enumerate(chain, 1))
    ranked(ledger, {chunk: 3 for chain in hot for chunk in chain})
    for _ in range(2_000):
        ledger.record(Change(rng.getrandbits(64), Tier.GPU, 64 * depth) for depth in range(1, 51))
    held, _ = replay(ledger)
    assert len(held) == ledger.count == 10_000
    assert all(chunk in held for chain in hot for chunk in chain)
    assert ledger.displaced > 0


@pytest.mark.parametrize(
    ("memory", "replicas", "chunks"),
    [
        (256 << 20, 4, MOST),
        (16 << 20, 1, (8 << 20) * 3 // 4 // ENTRY_BYTES),
        (16 << 20, 10, (8 << 20) * 3 // 4 // ENTRY_BYTES // 10),
        (1, 1, 1),
        (16 << 20, 0, (8 << 20) * 3 // 4 // ENTRY_BYTES),
    ],
)
def test_a_servers_memory_is_shared_out(memory: int, replicas: int, chunks: int) -> None:
    assert capacity_within(memory, replicas) == chunks
