"""The deviation of KV usage over time, and latencies by whether blocks were evicted meanwhile."""

from __future__ import annotations

from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.kv_metrics import EvictionLatency, UsageSums


@given(levels=st.lists(st.tuples(st.integers(1, 20), st.floats(0, 1)), min_size=1, max_size=20))
def test_deviation_is_that_of_the_usage_in_each_second(levels: list[tuple[int, float]]) -> None:
    sums = UsageSums()
    for seconds, usage in levels:
        sums.add(seconds, usage)
    each = [usage for seconds, usage in levels for _ in range(seconds)]
    assert sums.deviation == pytest.approx(pstdev(each), abs=1e-6)


def test_differences_of_the_sums_give_a_window() -> None:
    sums = UsageSums()
    sums.add(100, 0.1)
    before = sums.seconds, sums.usage, sums.squared
    sums.add(5, 0.2)
    sums.add(5, 0.8)
    seconds, usage, squared = (
        now - then for now, then in zip((sums.seconds, sums.usage, sums.squared), before, strict=True)
    )
    assert (squared / seconds - (usage / seconds) ** 2) ** 0.5 == pytest.approx(0.3)


def test_nothing_observed_has_no_deviation() -> None:
    assert UsageSums().deviation == 0


def test_request_ran_under_eviction_if_the_pool_evicted_before_its_end() -> None:
    latency = EvictionLatency()
    latency.admitted("calm", 7)
    latency.admitted("pressed", 7)
    assert not latency.ended("calm", 7, 1.5)
    latency.admitted("pressed", 9)  # preempted and resumed: its first admission counts
    assert latency.ended("pressed", 9, 40.0)
    assert (latency.without.count, latency.without.sum) == (1, 1.5)
    assert (latency.under.count, latency.under.sum) == (1, 40.0)


def test_request_that_never_ran_or_was_aborted_counts_nowhere() -> None:
    latency = EvictionLatency()
    latency.ended("waited", 3, 9.0)
    latency.admitted("left", 1)
    latency.dropped("left")
    latency.dropped("unknown")
    latency.ended("left", 5, 9.0)
    assert latency.under.count == latency.without.count == 0
