"""The circuit breaker: when it opens, and when a failed replica is tried again."""

from __future__ import annotations

from plumage.settings.router_config import BreakerConfig
from plumage_router.fleet.breaker import Breaker, BreakerState


def _breaker() -> Breaker:
    return Breaker(BreakerConfig(failures=3, base=1.0, cap=4.0))


def _open() -> Breaker:
    breaker = _breaker()
    breaker.failed(0.0, certain=True)
    return breaker


def test_breaker_opens_after_failures_in_a_row() -> None:
    breaker = _breaker()
    for outcome in "ffsff":
        breaker.succeeded() if outcome == "s" else breaker.failed(0.0)
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert not breaker.allows(0.5)


def test_refused_connection_opens_breaker_at_once() -> None:
    assert not _open().allows(0.5)


def test_half_open_breaker_allows_one_trial() -> None:
    breaker = _open()
    assert breaker.allows(1.0)
    assert breaker.state is BreakerState.OPEN, "`allows` changes nothing"
    breaker.advance(1.0)
    assert breaker.allows(1.0)
    assert breaker.allows(1.0), "`allows` uses no trial"
    breaker.started()
    assert not breaker.allows(1.0)
    breaker.abandoned()
    assert breaker.allows(1.0)
    breaker.started()
    breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED


def test_backoff_doubles_up_to_cap() -> None:
    breaker, now, waits = _open(), 0.0, []
    for _ in range(4):
        start = now
        while not breaker.allows(now):
            now += 0.25
        breaker.advance(now)
        waits.append(now - start)
        breaker.started()
        breaker.failed(now)
    assert waits == [1.0, 2.0, 4.0, 4.0]


def test_late_failures_do_not_prolong_backoff() -> None:
    breaker = _open()
    for _ in range(10):
        breaker.failed(0.9)
    assert breaker.allows(1.0)


def test_health_check_closes_breaker_of_failed_connection() -> None:
    breaker = _open()
    breaker.reached(back=False)
    assert breaker.state is BreakerState.CLOSED
    for _ in range(2):
        breaker.failed(1.0)
    assert breaker.state is BreakerState.CLOSED, "the count started again"


def test_health_check_does_not_close_breaker_of_failed_completions() -> None:
    """An engine with a good health check and failing completions gets only trials, after longer and longer waits."""
    breaker, sent = _breaker(), 0
    for tick in range(600):
        now = tick / 10
        breaker.advance(now)
        if breaker.allows(now):
            breaker.started()
            breaker.failed(now)
            sent += 1
        if tick % 10 == 9:
            breaker.reached(back=False)
    assert sent == 3 + 2 + 60 // 4 - 1, "three to open it, after 1 s and 2 s more, then every 4 s"


def test_returned_engine_gets_trial_at_once() -> None:
    breaker = _breaker()
    for _ in range(3):
        breaker.failed(0.0)
    breaker.reached(back=True)
    assert breaker.state is BreakerState.HALF_OPEN
    breaker.started()
    assert not breaker.allows(0.1), "one trial"
    breaker.reached(back=True)
    assert not breaker.allows(0.1), "a health check allows no second trial"
    breaker.failed(0.2)
    assert not breaker.allows(2.1), "the back-off has doubled"


def test_outcome_is_counted_once_at_its_end() -> None:
    breaker = _breaker()
    breaker.succeeded()
    assert breaker.outcomes.total == 0, "it may be cut off"
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.completed()
    assert (breaker.outcomes.failed, breaker.outcomes.total) == (1, 2)


def test_silence_opens_breaker_and_is_no_outcome() -> None:
    breaker = _breaker()
    for _ in range(2):
        breaker.failed(0.0, silent=True)
    assert breaker.outcomes.total == 0, "the request may be the cause"
    breaker.failed(0.0, silent=True)
    assert breaker.state is BreakerState.OPEN
