"""The share of a cached prefix in recent requests, and what LBGR charges for a copy of it."""

from __future__ import annotations

import random

import pytest

from plumage.routing import Lbgr, LbgrSettings, Query, ReplicaState
from plumage.routing.popularity import PrefixShares


def _query(now: float, prefix: int, cached: int = 1) -> Query:
    return Query(now, 1000.0, {}, (prefix, prefix + 1), cached_chunks=cached)


def test_share_is_of_all_recent_requests() -> None:
    shares = PrefixShares()
    for number in range(400):
        shares.sent(_query(0.01 * number, 7 if number % 4 == 0 else 1000 + number))
    assert shares.of(_query(4.0, 7)) == pytest.approx(0.25, abs=0.01)
    assert shares.of(_query(4.0, 1399)) == pytest.approx(1 / 400, rel=0.1)
    assert shares.of(_query(4.0, 5)) == 0.0


def test_requests_without_a_cached_prefix_count_only_among_all() -> None:
    shares = PrefixShares()
    for _ in range(100):
        shares.sent(_query(0.0, 7))
        shares.sent(_query(0.0, 9, cached=0))
    assert shares.of(_query(0.0, 7)) == 0.5
    assert shares.of(_query(0.0, 9)) == 0.0
    assert shares.of(_query(0.0, 9, cached=0)) == 0.0


def test_few_requests_have_a_small_share() -> None:
    shares = PrefixShares()
    shares.sent(_query(0.0, 7))
    assert shares.of(_query(0.0, 7)) == 1 / 20


def test_share_fades() -> None:
    shares = PrefixShares()
    for _ in range(200):
        shares.sent(_query(0.0, 7))
    for _ in range(200):
        shares.sent(_query(90.0, 8))
    assert shares.of(_query(90.0, 7)) < 0.06
    assert shares.of(_query(1e6, 8)) < 1e-3, "the other requests have faded too, so few are left to be a share of"


def test_prefixes_are_bounded_and_the_latest_stay() -> None:
    shares = PrefixShares()
    for number in range(20_000):
        shares.sent(_query(0.001 * number, 10 * number))
        shares.sent(_query(0.001 * number, 7))
    assert len(shares._counts) <= 4096
    assert shares.of(_query(20.0, 7)) == pytest.approx(0.5, rel=0.01)


def test_long_time_neither_overflows_nor_changes_shares() -> None:
    shares = PrefixShares()
    for number in range(20_000):
        shares.sent(_query(1.0 * number, number % 2))
    assert shares.of(_query(20_000.0, 0)) == pytest.approx(0.5, abs=0.02)


def test_clock_that_steps_back_changes_nothing() -> None:
    shares = PrefixShares()
    for number in range(100):
        shares.sent(_query(100.0 - number, 7))
    assert shares.of(_query(0.0, 7)) == 1.0


@pytest.mark.parametrize(("hot", "copied"), [(True, True), (False, False)])
def test_prefix_with_most_requests_is_copied_under_load(hot: bool, copied: bool) -> None:
    """One replica holds the prefix and has a queue. A request that computes it elsewhere would start earlier, and delay
    others. That costs nothing where the others want the same prefix."""
    policy = Lbgr(rng=random.Random(0), settings=LbgrSettings(spread=0.0))
    states = [ReplicaState(0), ReplicaState(1)]
    for number in range(200):
        now = 0.05 * number
        query = Query(now, 4000.0, {0: 4000.0}, (1 if hot else 10 + number, 2), cached_chunks=1)
        ticket = policy.routed(query, policy.choose(query, states[:1]))
        policy.first_token(ticket, now + 0.01)
    states[0].foreign_work = 3.0
    query = Query(10.0, 4000.0, {0: 4000.0}, (1 if hot else 5000, 2), cached_chunks=1)
    policy._popularity.sent(query)
    assert (policy.choose(query, states).slot == 1) is copied
