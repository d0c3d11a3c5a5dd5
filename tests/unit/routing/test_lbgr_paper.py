"""Our reconstruction of the printed form."""

from __future__ import annotations

import random

import pytest

from plumage.routing import Query, ReplicaState
from plumage.routing.lbgr_paper import LbgrPaper
from plumage.routing.work import DecayingWork


def _states(count: int) -> list[ReplicaState]:
    return [ReplicaState(slot) for slot in range(count)]


def test_work_halves_every_437_milliseconds() -> None:
    work = DecayingWork()
    work.grow(1)
    work.add(0, 2.0, 10.0)
    assert work.at(0, 10.020) == pytest.approx(2.0 * 31 / 32)
    assert work.at(0, 10.437) == pytest.approx(1.0, rel=0.01)


def test_release_subtracts_what_is_left_of_one_request() -> None:
    work = DecayingWork()
    work.grow(1)
    work.add(0, 2.0, 0.0)
    work.add(0, 1.0, 0.3)
    work.release(0, 2.0, 0.0, 0.6)
    alone = DecayingWork()
    alone.grow(1)
    alone.add(0, 1.0, 0.3)
    assert work.at(0, 0.6) == pytest.approx(alone.at(0, 0.6))


def test_work_survives_days_of_silence_and_of_traffic() -> None:
    work = DecayingWork()
    work.grow(1)
    now = 0.0
    for _ in range(20_000):
        now += 0.05
        work.add(0, 0.01, now)
    steady = work.at(0, now)
    assert steady == pytest.approx(0.01 / (1 - (31 / 32) ** 2.5), rel=0.01)
    assert work.at(0, now + 86_400.0) == pytest.approx(0.0, abs=1e-12)


def test_prediction_before_learning_is_service_plus_work() -> None:
    policy = LbgrPaper(rng=random.Random(1))
    query = Query(0.0, 3000, {0: 1000.0})
    choice = policy.choose(query, _states(2))
    assert choice.slot == 0
    assert choice.scores == pytest.approx([2.0, 3.0])
    ticket = policy.routed(query, choice)
    assert ticket.predicted_latency is None, "the cost of decoding is unknown yet"
    again = policy.choose(query, _states(2))
    assert again.scores == pytest.approx([4.0, 3.0])
    policy.finished(ticket, 12.0, None)
    predicted = policy.routed(Query(20.0, 3000, {0: 1000.0}), choice).predicted_latency
    assert predicted == pytest.approx(12.0, rel=0.05)


def test_work_is_released_once_and_learned_from_once() -> None:
    policy = LbgrPaper(rng=random.Random(1))
    query = Query(0.0, 2000, {})
    ticket = policy.routed(query, policy.choose(query, _states(1)))
    policy.failed(ticket, 0.1)
    policy.failed(ticket, 0.1)
    policy.finished(ticket, 0.2, None)
    assert policy.choose(Query(0.1, 2000, {}), _states(1)).scores == pytest.approx([2.0])
