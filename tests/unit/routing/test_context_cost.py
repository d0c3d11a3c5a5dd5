"""κ, the cost of context per token, is learned from first tokens that arrive in an engine's steps."""

from __future__ import annotations

import random

import pytest

from plumage.routing import Lbgr, LbgrSettings, Query, ReplicaState
from plumage.routing.context_cost import ContextCost, Stretch

STEP = 8.0  # thousand tokens that an engine computes in one step


def _learned(kappa: float, *, speeds: tuple[float, ...] = (0.15,), count: int = 600, fixed: float = 0.0) -> ContextCost:
    """Prompts in a row at engines whose steps are full. The time of a step counts for the first
    prompt that ends in it.
    """
    rng, cost = random.Random(3), ContextCost()
    average = sum(speeds) / len(speeds)
    for speed in speeds:
        stretch, filled, gap = Stretch(), 0.0, 0.0
        for _ in range(count):
            hit, miss = rng.choice([0.0, 1.0, 4.0]), rng.choice([0.3, 1.0, 3.0, 9.0, 20.0])
            gap += speed * miss * (1.0 + kappa * (hit + miss / 2.0)) + fixed
            filled += miss
            seen, gap = (gap, 0.0) if filled >= STEP else (0.0, gap)
            filled %= STEP
            stretch.add(hit, miss, seen * average / speed)
            cost.learn(stretch, average)
    return cost


@pytest.mark.parametrize("kappa", [0.0, 0.033, 0.24])
def test_cost_of_context_is_found(kappa: float) -> None:
    assert _learned(kappa).kappa == pytest.approx(kappa, abs=0.012)


def test_speed_is_not_taken_for_context() -> None:
    assert _learned(0.033, speeds=(0.05, 0.3)).kappa == pytest.approx(0.033, abs=0.012)


def test_cost_per_request_is_not_taken_for_context() -> None:
    assert _learned(0.1, fixed=0.05).kappa == pytest.approx(0.1, abs=0.02)


def test_learning_needs_a_long_stretch() -> None:
    cost, stretch = ContextCost(), Stretch()
    stretch.add(0.0, 8.0, 8.0 * 2.0)
    cost.learn(stretch, 1.0)
    assert (stretch.requests, cost.kappa) == (1, 0.0)
    stretch.add(0.0, 30.0, 30.0 * 4.0)
    cost.learn(stretch, 1.0)
    assert stretch.requests == 0
    assert cost.kappa > 0.0


def test_kappa_stays_within_bounds_for_any_input() -> None:
    rng, cost, stretch = random.Random(5), ContextCost(), Stretch()
    for _ in range(2_000):
        stretch.add(rng.choice([0.0, 1e3]), rng.choice([0.016, 1.0, 1e3]), rng.choice([0.0, 1e-9, 1.0, 1e5]))
        cost.learn(stretch, rng.choice([0.0, 1e-6, 1.0]))
        assert 0.0 <= cost.kappa <= 1.0


def test_long_prompt_is_predicted_by_its_context() -> None:
    """c_miss was learned from short prompts. Linear in tokens, the long one's time would be less than half of the true
    one.
    """
    rng, policy, state, now = (
        random.Random(7),
        Lbgr(rng=random.Random(1), settings=LbgrSettings()),
        ReplicaState(0),
        0.0,
    )
    errors = []
    for _ in range(400):
        tokens = rng.choice([500.0, 2000.0, 8000.0, 30_000.0])
        query = Query(now, tokens, {})
        ticket = policy.routed(query, policy.choose(query, [state]))
        took = 0.1 * tokens / 1000.0 * (1.0 + 0.1 * tokens / 2000.0)
        assert ticket.predicted_ttft is not None
        if tokens == 30_000.0:
            errors.append(ticket.predicted_ttft / took - 1.0)
        now += took
        policy.first_token(ticket, now)
        policy.finished(ticket, now, None)
    assert abs(sum(errors[-20:])) / 20 < 0.1
    assert policy._context.kappa == pytest.approx(0.1, rel=0.1)
