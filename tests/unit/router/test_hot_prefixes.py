"""The prefixes a router matches most: handed over to the pool and counted here."""

from __future__ import annotations

from plumage_router.routing.hot_prefixes import HotPrefixes


def test_what_was_matched_is_handed_over_once_and_still_counted_here() -> None:
    hottest = HotPrefixes()
    for tokens in (100.0, 640.0, 320.0):
        hottest.count(7, tokens)
    hottest.count(8, 64.0)
    assert hottest.take() == {7: (3, 640), 8: (1, 64)}
    assert hottest.take() == {}
    hottest.count(7, 10.0)
    assert hottest.take() == {7: (1, 10)}
    assert [(row["count"], row["tokens"]) for row in hottest.top(5)] == [(4, 640), (1, 64)]


def test_with_nobody_to_hand_over_to_memory_is_bounded() -> None:
    hottest = HotPrefixes(capacity=8, max_recent=16)
    for number in range(1000):
        hottest.count(number, 1.0)
        hottest.count(5, 2.0)
    assert len(hottest.take()) <= 16
    assert hottest.top(100)[0] == {"chunk": f"{5:016x}", "tokens": 2, "count": hottest.top(1)[0]["count"]}
    assert len(hottest.top(100)) <= 8
