"""Pool-wide hotness adds up in any order, ages by the pool's requests, stays bounded, and contains no text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.errors import ConfigurationError
from plumage.hotness.fleet import DeltaCounter, FleetHotness, HotnessDelta
from plumage.hotness.node_uses import NodeUses

keys = st.integers(0, 2**64 - 1)
deltas = st.builds(
    HotnessDelta,
    st.integers(0, 1000),
    st.dictionaries(keys, st.tuples(st.integers(1, 500), st.integers(1, 10**5)), max_size=20),
    st.integers(0, 9),
)


@given(deltas)
def test_delta_reads_back_from_the_wire(delta: HotnessDelta) -> None:
    data = delta.to_bytes()
    assert HotnessDelta.from_bytes(data) == delta
    assert len(data) == 13 + 16 * len(delta.uses), "hashes and counts, nothing else"


@settings(deadline=None)
@given(st.lists(deltas, max_size=6), st.randoms(use_true_random=False))
def test_frequencies_add_up_in_any_order(received: list[HotnessDelta], rng: random.Random) -> None:
    shuffled = list(received)
    rng.shuffle(shuffled)
    one, other = FleetHotness(), FleetHotness()
    for delta in received:
        one.add(delta)
    for delta in shuffled:
        other.add(delta)
    assert one.requests == other.requests
    seen = {key for delta in received for key in delta.uses}
    for key in seen:
        both = [view.get(key) for view in (one, other)]
        assert all(both)
        expected = sum(delta.uses[key][0] for delta in received if key in delta.uses)
        assert [uses.frequency for uses in both if uses] == [expected, expected]


@settings(deadline=None)
@given(st.lists(deltas, max_size=4), st.lists(deltas, max_size=4))
def test_merged_views_equal_one_that_counted_all(left: list[HotnessDelta], right: list[HotnessDelta]) -> None:
    parts = [FleetHotness(), FleetHotness()]
    whole = FleetHotness()
    for view, received in zip(parts, (left, right), strict=True):
        for delta in received:
            view.add(delta)
            whole.add(delta)
    parts[0].merge(parts[1])
    assert parts[0].requests == whole.requests
    for key in {key for delta in (*left, *right) for key in delta.uses}:
        assert (parts[0].get(key) or NodeUses(0, 0)).frequency == (whole.get(key) or NodeUses(0, 0)).frequency


def test_clock_counts_requests_of_the_pool() -> None:
    view = FleetHotness(max_age=10, aging_interval=100)
    view.add(HotnessDelta(5, {1: (3, 64)}))
    assert view.get(1) == NodeUses(3, 10)
    view.add(HotnessDelta(450))
    assert view.get(1) == NodeUses(3, 6), "other replicas' requests age it too"
    view.add(HotnessDelta(10_000))
    assert view.get(1) == NodeUses(3, 0)
    view.add(HotnessDelta(1, {1: (1, 64)}))
    assert view.get(1) == NodeUses(4, 10), "a use resets the clock and keeps the frequency"


def test_hottest_are_first_and_the_coldest_are_dropped() -> None:
    view = FleetHotness(capacity=80)
    for key in range(200):
        view.add(HotnessDelta(1, {key: (1 + key, 64)}))
        assert len(view) <= 80
    hottest = view.hottest(10)
    assert [node.key for node in hottest] == list(range(199, 189, -1))
    assert view.get(0) is None


@settings(deadline=None)
@given(st.lists(deltas, max_size=5))
def test_view_reads_back_from_the_wire(received: list[HotnessDelta]) -> None:
    view, copy = FleetHotness(), FleetHotness()
    for delta in received:
        view.add(delta)
    copy.load(view.to_bytes())
    assert copy.hottest(100) == view.hottest(100)


@pytest.mark.parametrize("data", [b"", b"\x02" + b"\0" * 12, HotnessDelta(1, {5: (1, 2)}).to_bytes()[:-1]])
def test_torn_or_foreign_messages_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        HotnessDelta.from_bytes(data)
    with pytest.raises(ConfigurationError):
        FleetHotness().load(data)


def test_view_that_would_stop_the_clock_is_refused_and_the_old_one_stays() -> None:
    view = FleetHotness()
    view.add(HotnessDelta(5, {7: (3, 64)}))
    good = view.to_bytes()
    with pytest.raises(ConfigurationError, match="interval of 0"):
        view.load(good[:1] + bytes(4) + good[5:])
    assert view.get(7) == NodeUses(3, 255)


def test_no_node_is_younger_than_its_view() -> None:
    view = FleetHotness()
    view.add(HotnessDelta(5, {7: (3, 64)}))
    packed = bytearray(view.to_bytes())
    packed[-8:] = (10**6).to_bytes(8, "little")  # the requests at its last use
    view.load(bytes(packed))
    assert view.get(7) == NodeUses(3, 255)


def test_counter_is_bounded_and_restarts_after_each_delta() -> None:
    counter = DeltaCounter(capacity=2)
    counter.request()
    for key in (1, 2, 3, 1):
        counter.use(key, tokens=32)
    assert counter.take() == HotnessDelta(1, {1: (2, 32), 2: (1, 32)}, left_out=1)
    assert counter.take() == HotnessDelta(0)


def test_uses_age_and_stay_at_least_one_until_they_are_forgotten() -> None:
    view = FleetHotness(max_age=10, aging_interval=1)
    view.add(HotnessDelta(1, {1: (20, 100), 2: (1, 100)}))
    assert [view.aged(key) for key in (1, 2, 3)] == [20, 1, 0]
    view.add(HotnessDelta(5))
    assert [view.aged(key) for key in (1, 2)] == [10, 1]
    view.add(HotnessDelta(5))
    assert [view.aged(key) for key in (1, 2)] == [0, 0]
