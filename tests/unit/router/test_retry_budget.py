"""The retry budget: a share of the requests and a reserve, in a sliding window; bursts need none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from plumage_router.proxy.retry_budget import BURST, MANY, RESERVE, SHARE, TENANT_RESERVE, WINDOW, RetryBudget

# Steps of a clock: seconds since the step before, requests and wanted retries at this moment.
STEPS = st.lists(st.tuples(st.floats(0, 4), st.integers(0, 300), st.integers(0, 300)), max_size=30)


def _taken(budget: RetryBudget, now: float, wanted: int) -> int:
    return sum(budget.take(now) for _ in range(wanted))


def test_quiet_pool_has_reserve() -> None:
    budget = RetryBudget()
    assert _taken(budget, 5.0, 500) == RESERVE


def test_busy_pool_retries_a_share_more() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.sent(5.0)
    assert _taken(budget, 5.0, 5000) == SHARE * 1000 + RESERVE


def test_window_slides() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.sent(0.5)
    assert _taken(budget, 1.5, 5000) == SHARE * 1000 + RESERVE
    assert _taken(budget, 9.9, 1) == 0, "all is in the window"
    assert _taken(budget, 10.1, 5000) == 0, "the requests left the window, their retries did not"
    assert _taken(budget, 11.1, 5000) == RESERVE
    assert _taken(budget, 1e6, 5000) == RESERVE, "after a long time without calls"


def test_tenant_leaves_half_of_the_reserve_to_others() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.sent(5.0)
    assert sum(budget.take(5.0, "greedy") for _ in range(500)) == SHARE * 100 + TENANT_RESERVE
    assert sum(budget.take(6.0, "other") for _ in range(500)) == RESERVE - TENANT_RESERVE
    assert sum(budget.take(15.0, "greedy") for _ in range(500)) == TENANT_RESERVE, "the window slides for tenants too"


@given(STEPS)
def test_retries_of_any_window_are_bounded(steps: Sequence[tuple[float, int, int]]) -> None:
    budget, now = RetryBudget(), 1000.0
    requests: list[float] = []
    retries: list[float] = []
    for seconds, sent, wanted in steps:
        now += seconds
        for _ in range(sent):
            budget.sent(now)
            requests.append(now)
        retries += [now] * _taken(budget, now, wanted)
        recent = [sum(int(now) - int(at) < WINDOW for at in times) for times in (requests, retries)]
        # A retry in the window was allowed by the requests of a window that ended with it.
        older = sum(int(now) - int(at) < 2 * WINDOW for at in requests)
        assert recent[1] <= SHARE * older + RESERVE
        if wanted:
            assert recent[1] >= min(wanted, RESERVE), "no fewer than the reserve allows"
            more = recent[1] + 1 <= SHARE * recent[0] + RESERVE
            assert budget.take(now) is more
            retries += [now] * more


def test_replica_that_dies_fails_in_a_burst() -> None:
    budget = RetryBudget()
    assert all(budget.in_burst("a", "connection_lost", sent_at=7.0 + n / 1000, now=8.0) for n in range(1000))
    assert budget.in_burst("a", "connection_lost", 7.0, 8.0 + BURST / 2)
    assert not budget.in_burst("a", "connection_lost", 8.1, 8.2), "it was sent when the replica failed already"
    assert not budget.in_burst("a", "connection_lost", 7.0, 8.1 + BURST), "it failed on its own"


def test_bursts_of_replicas_and_kinds_are_separate() -> None:
    budget = RetryBudget()
    for name, failure in (("a", "http_500"), ("b", "http_500"), ("a", "connection_lost")):
        assert budget.in_burst(name, failure, 7.0, 8.0)
    assert budget.in_burst("a", "connection_lost", 7.9, 8.1)


def test_replica_has_one_burst_in_a_window() -> None:
    """Engines that fail after two seconds, all the time: a tenth of the failures is free."""
    budget = RetryBudget()
    free = [budget.in_burst("a", "http_504", now / 10 - 2.0, now / 10) for now in range(10_000, 11_000)]
    assert 0.08 < sum(free) / len(free) < 0.13


def test_one_failure_does_not_use_up_the_burst_of_a_death() -> None:
    budget = RetryBudget()
    assert budget.in_burst("a", "connection_lost", 104.0, 105.0)
    free = [budget.in_burst("a", "connection_lost", 109.0, 110.0) for _ in range(300)]
    assert free == [False] * (MANY - 1) + [True] * (301 - MANY)
    assert not any(budget.in_burst("a", "connection_lost", 111.0, 112.0) for _ in range(300)), "one in a window"


def test_few_failures_in_each_second_are_no_bursts() -> None:
    budget = RetryBudget()
    free = [budget.in_burst("a", "http_500", now / 8 - 2.0, now / 8) for now in range(8_000, 8_800)]
    assert sum(free) <= MANY


def test_memory_is_bounded_by_failing_replicas() -> None:
    budget = RetryBudget()
    for second in range(1000):
        for replica in range(10):
            budget.in_burst(f"{second}-{replica}", "http_500", second, second)
    assert len(budget._bursts) <= 10 * (WINDOW + 1)
    assert sys.getsizeof(budget._requests) < 1000
