"""Counts of matched prefixes: returned once for the pool, and kept here."""

from __future__ import annotations

from plumage_router.routing.decision_log import HotPrefixes


def test_take_returns_counts_once() -> None:
    hottest = HotPrefixes()
    for tokens in (100.0, 640.0, 320.0):
        hottest.count(7, tokens)
    hottest.count(8, 64.0)
    assert hottest.take() == {7: (3, 640), 8: (1, 64)}
    assert hottest.take() == {}
    hottest.count(7, 10.0)
    assert hottest.take() == {7: (1, 10)}
    assert [(row["count"], row["tokens"]) for row in hottest.top(5)] == [(4, 640), (1, 64)]


def test_counts_are_bounded_without_take() -> None:
    hottest = HotPrefixes(capacity=8, max_recent=16)
    for number in range(1000):
        hottest.count(number, 1.0)
        hottest.count(5, 2.0)
    assert len(hottest.take()) <= 16
    assert hottest.top(100)[0] == {"chunk": f"{5:016x}", "tokens": 2, "count": hottest.top(1)[0]["count"]}
    assert len(hottest.top(100)) <= 8
