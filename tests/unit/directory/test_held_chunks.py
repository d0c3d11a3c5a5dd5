"""Held chunks at their capacity: the coldest is dropped for a hotter one, and every published record stays true."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.directory import schema
from plumage.directory.publisher import held_chunks as module
from plumage.directory.publisher.held_chunks import ENTRY_BYTES, MAX_CHUNKS, HeldChunks, capacity_within
from plumage.directory.schema import BUCKETS, RECORD, Change, Tier


def test_full_held_chunks_drop_the_deepest_for_a_shallower_one() -> None:
    """A chain that is cut at its end stays readable."""
    held_chunks = HeldChunks(capacity=4)
    chain = [Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 7)]
    held_chunks.record(chain)
    assert (held_chunks.count, held_chunks.refused, held_chunks.displaced) == (4, 2, 0)
    changes, _, _ = schema.unpack_records(held_chunks.record([Change(100, Tier.GPU, 64)]))
    assert changes == [(4, Tier.GONE, 0), (100, Tier.GPU, 64)]
    assert held_chunks.record([Change(101, Tier.GPU, 256)]) == b"", "deeper than all held chunks"
    assert (held_chunks.count, held_chunks.refused, held_chunks.displaced) == (4, 3, 1)


def test_most_used_chunk_is_dropped_last_and_returns_when_it_is_hot() -> None:
    held_chunks = HeldChunks(capacity=4)
    held_chunks.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in (7, 8, 1, 2)])
    held_chunks.record([Change(3, Tier.GPU, 100), Change(4, Tier.GPU, 100)])
    changes, _, _ = schema.unpack_records(ranked(held_chunks, {7: 5, 8: 5}))
    assert {(chunk, tier) for chunk, tier, _ in changes[1::2]} == {(7, Tier.GPU), (8, Tier.GPU)}
    assert [tier for _, tier, _ in changes] == [Tier.GONE, Tier.GPU] * 2
    assert held_chunks.record([Change(9, Tier.GPU, 1), Change(10, Tier.GPU, 1), Change(11, Tier.GPU, 1)]) != b""
    left, _ = replay(held_chunks)
    assert {7, 8} <= left, "others are dropped for the new ones, these are not"
    ranked(held_chunks, {})
    held_chunks.record([Change(12, Tier.GPU, 1), Change(13, Tier.GPU, 1)])
    assert not {7, 8} & replay(held_chunks)[0], "no longer hot, and the deepest"


def test_omitted_chunk_is_added_when_there_is_room() -> None:
    held_chunks = HeldChunks(capacity=3)
    held_chunks.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 7)])
    changes, _, _ = schema.unpack_records(
        held_chunks.record([Change(1, Tier.GONE), Change(2, Tier.GONE), Change(5, Tier.GONE)])
    )
    assert changes == [(1, Tier.GONE, 0), (2, Tier.GONE, 0), (4, Tier.GPU, 256), (6, Tier.GPU, 384)], "5 was dropped"
    held_chunks.clear()
    assert held_chunks.record([Change(9, Tier.GONE)]) == b""
    assert replay(held_chunks) == (set(), 0)


def ranked(held_chunks: HeldChunks, uses: dict[int, int]) -> bytes:
    """Ranked to the end."""
    return b"".join(held_chunks.rank(uses))


def replay(held_chunks: HeldChunks) -> tuple[set[int], int]:
    """What a router reads in a snapshot: the chunks, and their digest."""
    buckets = (schema.unpack_bucket(held_chunks.bucket(number, 1))[1] for number in range(BUCKETS))
    held = {chunk for bucket in buckets for chunk, _ in RECORD.iter_unpack(bucket)}
    return held, sum(held) & schema.DIGEST_MASK


def test_smaller_share_drops_the_coldest_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKED", 2)
    held_chunks = HeldChunks(capacity=9)
    held_chunks.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 11)])
    ranked(held_chunks, {9: 3})
    smaller = [schema.unpack_records(part)[0] for part in held_chunks.resize(4)]
    assert smaller == [[(8, 0, 0), (7, 0, 0)], [(6, 0, 0), (5, 0, 0)], [(4, 0, 0)]], "the deepest one, not the hot one"
    assert replay(held_chunks)[0] == {1, 2, 3, 9}
    larger = [len(schema.unpack_records(part)[0]) for part in held_chunks.resize(100)]
    assert sum(larger) == 6
    assert max(larger) == 2
    assert replay(held_chunks)[0] == set(range(1, 11)), "they return"


def test_held_chunks_may_change_between_parts_of_a_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKED", 2)
    held_chunks = HeldChunks(capacity=4)
    held_chunks.record([Change(chunk, Tier.GPU, 64 * chunk) for chunk in range(1, 11)])
    parts = held_chunks.rank({chunk: 20 - chunk for chunk in (5, 6, 7, 8, 9, 10)})
    next(parts)
    assert replay(held_chunks)[0] == {1, 2, 5, 6}, "two at a time"
    held_chunks.record([Change(7, Tier.GONE), Change(6, Tier.HOST, 384)])
    rest = [schema.unpack_records(part)[0] for part in parts]
    assert [len(part) for part in rest] == [2, 2], "one replaces another in each part"
    assert replay(held_chunks)[0] == {5, 6, 8, 9}, "not the chunks that the engine evicted meanwhile"
    assert held_chunks.count == 4


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
def test_records_of_full_held_chunks_match_their_content(steps: list[Any], capacity: int) -> None:
    """The same as sets: bounded, complete by the records alone, nothing false, nothing left out while there is room."""
    held_chunks = HeldChunks(capacity)
    engine: dict[int, tuple[int, int]] = {}
    published: dict[int, tuple[int, int]] = {}
    for step in steps:
        if isinstance(step, dict):
            data = ranked(held_chunks, {spread(number): uses for number, uses in step.items()})
        elif isinstance(step, int):
            capacity = step
            data = b"".join(held_chunks.resize(capacity))
        else:
            changes = [Change(spread(number), tier, tokens) for number, tier, tokens in step]
            data = held_chunks.record(changes)
            for chunk, tier, tokens in changes:
                engine[chunk] = (tier, tokens)
        for chunk, tier, tokens in schema.unpack_records(data)[0]:
            assert (chunk in published) or tier, "no record deletes a chunk that was not published"
            published[chunk] = (tier, tokens)
            if not tier:
                del published[chunk]
        engine = {chunk: state for chunk, state in engine.items() if state[0]}
        assert published.items() <= engine.items()
        assert len(published) == min(capacity, len(engine)) == held_chunks.count
        assert replay(held_chunks) == (set(published), held_chunks.digest)


def spread(number: int) -> int:
    """Maps a small number to a chunk anywhere among the buckets."""
    return number * 0x9E3779B97F4A7C15 & schema.DIGEST_MASK


def test_hot_chains_outlive_a_flood_of_many_times_the_capacity() -> None:
    rng = random.Random(3)
    hot = [[rng.getrandbits(64) for _ in range(40)] for _ in range(25)]
    held_chunks = HeldChunks(capacity=10_000)
    held_chunks.record(Change(chunk, Tier.GPU, 64 * depth) for chain in hot for depth, chunk in enumerate(chain, 1))
    ranked(held_chunks, {chunk: 3 for chain in hot for chunk in chain})
    for _ in range(2_000):
        held_chunks.record(Change(rng.getrandbits(64), Tier.GPU, 64 * depth) for depth in range(1, 51))
    held, _ = replay(held_chunks)
    assert len(held) == held_chunks.count == 10_000
    assert all(chunk in held for chain in hot for chunk in chain)
    assert held_chunks.displaced > 0


@pytest.mark.parametrize(
    ("memory", "replicas", "chunks"),
    [
        (256 << 20, 4, MAX_CHUNKS),
        (16 << 20, 1, (8 << 20) * 3 // 4 // ENTRY_BYTES),
        (16 << 20, 10, (8 << 20) * 3 // 4 // ENTRY_BYTES // 10),
        (1, 1, 1),
        (16 << 20, 0, (8 << 20) * 3 // 4 // ENTRY_BYTES),
    ],
)
def test_memory_of_a_server_is_shared_out(memory: int, replicas: int, chunks: int) -> None:
    assert capacity_within(memory, replicas) == chunks
