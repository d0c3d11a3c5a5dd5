"""Prefixes in long queues, and their use by LBGR."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from plumage.hashing.chunks import ENDS
from plumage.routing import Lbgr, LbgrSettings, Query, ReplicaState
from plumage.routing.queued import QueuedPrefixes

DOCUMENT = tuple(range(100))


def _query(now: float, hits: dict[int, float] | None = None, chunks: Sequence[int] = DOCUMENT) -> Query:
    return Query(now, 10.0 * len(chunks), hits or {}, chunks)


def test_prompt_behind_the_same_prefix_counts_as_held() -> None:
    queued = QueuedPrefixes(long=2.0)
    queued.sent(_query(0.0), 3, wait=30.0)
    other = (*DOCUMENT[:60], *range(1000, 1040))
    found = queued.expected(_query(1.0, chunks=other), {3: 30.0, 4: 30.0})
    assert set(found) == {3}
    assert 500.0 <= found[3] <= 600.0, "at least five sixths of what the two share"


def test_chunks_that_grow_count_by_their_size() -> None:
    queued = QueuedPrefixes(long=2.0)
    keys = list(range(237))
    size = ENDS[len(keys)]

    def query(now: float, chunks: Sequence[int]) -> Query:
        return Query(now, float(size), {}, chunks, ends=ENDS)

    queued.sent(query(0.0, keys), 3, wait=30.0)
    for shared in (1, 40, 64, 100, 150, 200, 237):
        found = queued.expected(query(1.0, [*keys[:shared], *range(1000, 1237 - shared)]), {3: 30.0})
        assert 5 / 6 * ENDS[shared] - 4096 <= found[3] <= ENDS[shared]


def test_held_tokens_count_by_the_share_that_survives_a_long_queue() -> None:
    queued = QueuedPrefixes(long=2.0)
    queued.sent(_query(0.0, chunks=(7,)), 0, wait=30.0)
    assert queued.expected(_query(1.0, {1: 800.0, 2: 800.0}), {1: 30.0, 2: 1.0}) == {1: 400.0, 2: 800.0}
    for _ in range(200):
        queued.graded(1.0, 0.1)
    assert queued.survival == pytest.approx(0.1, abs=0.01)


def test_note_ends_with_its_turn_and_with_its_replica() -> None:
    queued = QueuedPrefixes(long=2.0)
    assert not queued.any_at(0.0)
    queued.sent(_query(0.0), 0, wait=30.0)
    assert queued.any_at(29.0)
    assert not queued.any_at(31.0)
    assert queued.expected(_query(29.0), {0: 5.0})
    assert not queued.expected(_query(31.0), {0: 5.0})
    queued.sent(_query(31.0), 0, wait=30.0)
    queued.forget(0)
    assert not queued.expected(_query(32.0), {0: 5.0})


def test_what_the_bound_dropped_is_found_alike_in_any_order() -> None:
    queued = QueuedPrefixes(long=2.0, most=25)
    queued.sent(_query(0.0, chunks=range(5)), 0, wait=100.0)
    for slot in (0, 1):
        queued.sent(_query(0.0, chunks=range(10)), slot, wait=50.0)
    for number in range(3):
        queued.sent(_query(0.0, chunks=(1000 + number,)), 2, wait=50.0)
    asked = _query(1.0, chunks=range(10))
    one, other = (dict.fromkeys(slots, 60.0) for slots in ((0, 1), (1, 0)))
    assert queued.expected(asked, one) == queued.expected(asked, other)


def test_short_queues_are_not_noted() -> None:
    queued = QueuedPrefixes(long=2.0)
    queued.sent(_query(0.0), 0, wait=1.9)
    assert not queued.any_at(0.0)


def test_notes_are_bounded() -> None:
    queued = QueuedPrefixes(long=0.0, most=50)
    for number in range(40):
        queued.sent(_query(0.0, chunks=range(1000 * number, 1000 * number + 30)), 0, wait=1e6)
    assert sum(map(len, queued._until.values())) <= 50
    assert len(queued._expiring) <= 50


def test_document_in_an_overloaded_fleet_goes_where_it_waits() -> None:
    """At 24a58ae the second question went to replica 1, which holds the document now but not at the question's turn."""
    policy = Lbgr(rng=random.Random(1), settings=LbgrSettings(c_miss=0.2))
    states = [ReplicaState(0), ReplicaState(1)]
    for number in range(150):
        filler = _query(0.0, chunks=range(10_000 * (number + 1), 10_000 * (number + 1) + 100))
        choice = policy.choose(filler, [states[number % 2]])
        policy.routed(filler, choice)
    first = _query(0.0)
    policy.routed(first, policy.choose(first, [states[0]]))
    assert policy.choose(_query(0.1, {1: 1000.0}), states).slot == 0
