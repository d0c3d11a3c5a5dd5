"""Outliers: which replica is ejected, for how long, and how many at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.settings.router_config import BreakerConfig
from plumage_router.fleet.breaker import EJECTION, LONGEST_EJECTION, SUSPECT, Breaker, BreakerState
from plumage_router.fleet.outliers import BAD, MOST, PAUSE, VOLUME, WELL, Outliers
from plumage_router.fleet.replicas import Fleet, Member, Replica

NEVER = BreakerConfig(failures=10_000)  # in a row; the tests are about rates


def _fleet(size: int) -> tuple[Fleet, Outliers]:
    fleet = Fleet(lambda member: None, lambda: Breaker(NEVER))  # type: ignore[arg-type, return-value]
    fleet.update([Member(f"r{number}", f"http://10.0.0.1:{9000 + number}") for number in range(size)])
    return fleet, Outliers(fleet, "chat")


def _answer(replica: Replica, failed: int, total: int, now: float = 0.0) -> None:
    for number in range(total):
        if number < failed:
            replica.breaker.failed(now)
        else:
            replica.breaker.succeeded()
            replica.breaker.completed()


def _ejected(fleet: Fleet) -> list[str]:
    return [replica.id for replica in fleet if replica.breaker.ejected]


@pytest.mark.parametrize(
    ("first", "others", "ejected"),
    [
        ((30, 100), (0, 100), True),
        ((9, 30), (0, 30), True),
        ((5, 19), (0, 100), False),  # too few answers
        ((30, 100), (0, 6), False),  # the others have too few
        ((19, 100), (0, 100), False),  # not bad
        ((30, 100), (11, 100), False),  # the others are not well
        ((5, 20), (2, 20), False),  # chance
        ((300, 1000), (300, 1000), False),  # all fail
    ],
)
def test_replica_is_ejected_for_failing_more_often(
    first: tuple[int, int], others: tuple[int, int], ejected: bool
) -> None:
    fleet, outliers = _fleet(4)
    for number, replica in enumerate(fleet):
        _answer(replica, *(others if number else first))
    outliers.sweep(1.0)
    assert _ejected(fleet) == (["r0"] if ejected else [])
    assert outliers.ejections == ejected
    names = [load.name for load in fleet.candidates(1.5)]
    assert ("r0" in names) is not ejected


def test_log_and_reason_name_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    fleet, outliers = _fleet(2)
    bad, good = fleet
    _answer(bad, 30, 100)
    _answer(good, 1, 100)
    with caplog.at_level(logging.WARNING):
        outliers.sweep(1.0)
    assert "replica r0 failed 30 of 100 requests, the others 1 of 100" in caplog.text
    assert bad.reason(2.0) == "it fails more often than the others"
    assert bad.shown_state == "Unhealthy"


def _one_of_two_ejected() -> tuple[Fleet, Outliers]:
    """The first of two replicas was ejected at 1.0."""
    fleet, outliers = _fleet(2)
    bad, good = fleet
    _answer(bad, 30, 100)
    _answer(good, 0, 100)
    outliers.sweep(1.0)
    return fleet, outliers


def test_ejected_replica_returns_by_trial_with_new_counts() -> None:
    fleet, outliers = _one_of_two_ejected()
    bad, _ = fleet
    bad.breaker.succeeded()
    assert bad.breaker.state is BreakerState.OPEN, "an answer to a request of before is no trial"
    assert [load.name for load in fleet.candidates(0.9 + EJECTION)] == ["r1"]
    assert [load.name for load in fleet.candidates(1.0 + EJECTION)] == ["r0", "r1"]
    bad.breaker.started()
    fleet.changed()
    assert [load.name for load in fleet.candidates(1.0 + EJECTION)] == ["r1"], "one trial at a time"
    bad.breaker.succeeded()
    assert bad.breaker.state is BreakerState.CLOSED
    assert bad.breaker.outcomes.total == 0
    outliers.sweep(2.0 + EJECTION)
    assert outliers.ejections == 1


def test_ejections_double_up_to_the_longest_and_are_forgotten() -> None:
    fleet, outliers = _fleet(2)
    (bad, good), now, lengths = fleet, 1.0, []
    for pause in (0.0, 5.0, 5.0, 5.0, 5.0, 5.0, LONGEST_EJECTION + 1):
        now += pause
        _answer(bad, 30, 100)
        _answer(good, 0, 100)
        outliers.sweep(now)
        start = now
        while not bad.breaker.allows(now):
            now += 1.0
        lengths.append(now - start)
        bad.breaker.advance(now)
        bad.breaker.started()
        bad.breaker.succeeded()
    assert lengths == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 30.0]


def test_old_answers_are_forgotten() -> None:
    fleet, outliers = _fleet(2)
    bad, good = fleet
    _answer(bad, 3, 20)  # not enough to be sure
    _answer(good, 0, 20)
    for second in range(1, 62):
        outliers.sweep(float(second))
    assert [replica.breaker.outcomes.total for replica in fleet] == [0, 0]


def test_worst_of_two_goes_first_and_the_other_stays() -> None:
    fleet, outliers = _fleet(12)
    for number, replica in enumerate(fleet):
        _answer(replica, {3: 30, 5: 60}.get(number, 0), 100)
    outliers.sweep(1.0)
    assert _ejected(fleet) == ["r5"], "a tenth of twelve"


def test_last_available_replica_is_not_ejected() -> None:
    fleet, outliers = _fleet(2)
    bad, good = fleet
    _answer(bad, 30, 100)
    _answer(good, 0, 100)
    good.draining = True
    fleet.changed()
    outliers.sweep(1.0)
    assert _ejected(fleet) == []
    good.draining = False
    outliers.sweep(2.0)
    assert _ejected(fleet) == ["r0"]


def test_ejected_replica_returns_when_the_others_are_away() -> None:
    fleet, _ = _one_of_two_ejected()
    bad, good = fleet
    good.breaker.failed(2.0, certain=True)
    fleet.changed()
    assert [load.name for load in fleet.candidates(2.0)] == ["r0"]
    assert bad.breaker.state is BreakerState.CLOSED


def test_refused_connections_are_left_to_the_breaker() -> None:
    """An engine that restarts refuses many requests, and none of its answers failed."""
    fleet, outliers = _fleet(2)
    restarted, good = fleet
    for _ in range(50):
        restarted.breaker.failed(0.0, certain=True)
        restarted.breaker.reached(back=True)
        restarted.breaker.succeeded()
    _answer(good, 0, 100)
    outliers.sweep(1.0)
    assert _ejected(fleet) == []


def test_replica_that_fails_all_is_suspected_before_others_answer() -> None:
    fleet, outliers = _fleet(3)
    bad, good, _ = fleet
    bad.breaker.undecided = SUSPECT
    good.breaker.undecided = SUSPECT // 10
    outliers.sweep(1.0)
    assert bad.breaker.state is BreakerState.CLOSED, "its requests may fail elsewhere in a moment"
    outliers.sweep(2.0)
    assert bad.breaker.state is BreakerState.OPEN
    assert bad.reason(2.0) == "its circuit breaker is open"
    assert outliers.ejections == 0


def _suspected(undecided: int) -> tuple[Fleet, Outliers, Replica]:
    """A fleet whose first replica is suspected since 2.0, and it."""
    fleet, outliers = _fleet(3)
    replica = next(iter(fleet))
    replica.breaker.undecided = undecided
    outliers.sweep(1.0)
    outliers.sweep(2.0)
    assert replica.breaker.state is BreakerState.OPEN
    return fleet, outliers, replica


def _prove(replica: Replica, now: float) -> None:
    """A request that it failed is the cause."""
    replica.breaker.undecided -= 1
    replica.breaker.acquitted(now)


def test_suspicion_ends_when_requests_prove_to_be_the_cause() -> None:
    fleet, outliers, replica = _suspected(SUSPECT + 3)
    for _ in range(3):
        _prove(replica, 3.0)
        assert replica.breaker.state is BreakerState.OPEN, "enough other failures are undecided"
    _prove(replica, 3.0)
    assert replica.breaker.state is BreakerState.CLOSED
    other = list(fleet)[1]
    replica.breaker.undecided = 0
    other.breaker.undecided = SUSPECT
    for second in range(4, int(PAUSE)):
        outliers.sweep(float(second))
    assert other.breaker.state is BreakerState.CLOSED, "after a wrong suspicion there is none for a while"
    outliers.sweep(3.0 + PAUSE)
    outliers.sweep(4.0 + PAUSE)
    assert other.breaker.state is BreakerState.OPEN


def test_suspicion_that_is_right_is_not_undone() -> None:
    _, _, replica = _suspected(SUSPECT)
    replica.breaker.undecided -= 1
    replica.breaker.failed(3.0)  # another replica answered the request
    _prove(replica, 3.0)
    assert replica.breaker.state is BreakerState.OPEN


def test_failure_without_a_known_cause_does_not_end_suspicion() -> None:
    _, _, replica = _suspected(SUSPECT)
    replica.breaker.undecided = 0
    replica.breaker.abandoned()
    assert replica.breaker.state is BreakerState.OPEN


@pytest.mark.parametrize("others", [(2, 0), (SUSPECT, SUSPECT), (SUSPECT, 2)])
def test_failures_of_several_replicas_point_to_requests(others: tuple[int, int]) -> None:
    fleet, outliers = _fleet(3)
    for replica, undecided in zip(fleet, (SUSPECT, *others), strict=True):
        replica.breaker.undecided = undecided
    for second_of_time in range(1, 5):
        outliers.sweep(float(second_of_time))
    assert {replica.breaker.state for replica in fleet} == {BreakerState.CLOSED}


def test_answer_ends_suspicion() -> None:
    fleet, outliers = _fleet(2)
    bad, _ = fleet
    for second in range(1, 5):
        bad.breaker.undecided = SUSPECT
        outliers.sweep(float(second))
        bad.breaker.succeeded()
        outliers.sweep(second + 0.6)
    assert bad.breaker.state is BreakerState.CLOSED


def test_last_available_replica_is_not_suspected() -> None:
    fleet, outliers = _fleet(2)
    bad, good = fleet
    good.draining = True
    bad.breaker.undecided = SUSPECT
    for second in range(1, 5):
        outliers.sweep(float(second))
    assert bad.breaker.state is BreakerState.CLOSED


def test_two_sick_replicas_do_not_hide_each_other() -> None:
    fleet, outliers = _fleet(3)
    first, second, well = fleet
    first.breaker.undecided = second.breaker.undecided = SUSPECT
    outliers.sweep(1.0)
    outliers.sweep(2.0)
    assert [replica.breaker.state for replica in fleet] == [BreakerState.OPEN, BreakerState.OPEN, BreakerState.CLOSED]
    fleet, outliers = _fleet(3)
    first, second, well = fleet
    _answer(first, 30, 100)
    _answer(second, 40, 100)
    _answer(well, 1, 100)
    outliers.sweep(1.0)
    assert _ejected(fleet) == ["r1"], "the worst of them"


def test_only_time_and_trial_end_an_ejection() -> None:
    fleet, _ = _fleet(2)
    bad, _good = fleet
    bad.breaker.eject(1.0)
    bad.breaker.failed(2.0, certain=True)
    for back in (False, True):
        bad.breaker.reached(back=back)
        assert (bad.breaker.state, bad.breaker.ejected) == (BreakerState.OPEN, True)
    bad.breaker.advance(1.0 + EJECTION)
    bad.breaker.reached(back=False)
    assert bad.breaker.state is BreakerState.HALF_OPEN, "the connection failed before, and the trial is still to come"


def test_ejected_replica_is_offered_to_a_request_that_failed_on_the_others() -> None:
    fleet, _ = _fleet(2)
    bad, good = fleet
    bad.breaker.eject(1.0)
    fleet.changed()
    assert [load.name for load in fleet.candidates(2.0, [good])] == ["r0"]
    assert bad.breaker.ejected
    assert [load.name for load in fleet.candidates(2.0)] == ["r1"], "others keep away"
    assert fleet.candidates(2.0, [good, bad]) == []
    bad.draining = True
    assert fleet.candidates(2.0, [good]) == []


def test_candidates_are_cached_until_a_breaker_becomes_half_open() -> None:
    fleet, _ = _fleet(3)
    bad, worse, _good = fleet
    bad.breaker.eject(1.0)
    worse.breaker.eject(2.0)
    fleet.changed()
    cached = fleet.candidates(3.0)
    assert fleet.candidates(0.9 + EJECTION) is cached
    assert [load.name for load in fleet.candidates(1.0 + EJECTION)] == ["r0", "r2"]
    assert [load.name for load in fleet.candidates(2.0 + EJECTION)] == ["r0", "r1", "r2"]


COUNTS = st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), min_size=1, max_size=30)


@given(st.lists(COUNTS, min_size=1, max_size=4), st.sets(st.integers(0, 29)))
def test_bounds_hold_whatever_fails(rounds: Sequence[Sequence[tuple[int, float]]], draining: set[int]) -> None:
    fleet, outliers = _fleet(len(rounds[0]))
    replicas = list(fleet)
    for number in draining:
        if number < len(replicas):
            replicas[number].draining = True
    for second, counts in enumerate(rounds):
        for replica, (total, share) in zip(replicas, counts, strict=False):
            _answer(replica, round(total * share), total)
        before = {r.id: (r.breaker.outcomes.failed, r.breaker.outcomes.total, r.breaker.ejected) for r in replicas}
        available = bool(fleet.candidates(second + 0.5))
        outliers.sweep(second + 1.0)
        ejected = _ejected(fleet)
        assert len(ejected) <= max(1, int(MOST * len(replicas)))
        assert bool(fleet.candidates(second + 1.0)) is available, "the last available replica stays"
        for name in (name for name in ejected if not before[name][2]):
            failed, total, _ = before[name]
            well = [(f, t) for f, t, _ in before.values() if t < VOLUME or f / t < BAD]
            rest_failed, rest = sum(f for f, _ in well), sum(t for _, t in well)
            assert total >= VOLUME
            assert failed / total >= BAD
            assert rest_failed <= WELL * rest
