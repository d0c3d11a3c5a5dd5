"""Recursive least squares: right on what it is told, finite whatever it is told."""

from __future__ import annotations

import random
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.routing.regression import Features, RecursiveLeastSquares


def _features(rng: random.Random) -> Features:
    return (rng.uniform(0, 8), rng.uniform(0, 8), rng.uniform(0, 3), 1.0)


def _value(weights: Features, x: Features) -> float:
    return sum(w * v for w, v in zip(weights, x, strict=True))


def test_finds_the_weights_that_made_the_data() -> None:
    rng, truth = random.Random(1), (0.02, 0.15, 0.9, 0.03)
    rls = RecursiveLeastSquares()
    for _ in range(300):
        x = _features(rng)
        rls.update(x, _value(truth, x) + rng.gauss(0, 0.01))
    assert rls.weights == pytest.approx(truth, abs=0.02)


def test_is_unbiased_below_zero_too() -> None:
    """The authors' code clips at 1 ms and so never corrects an over-estimate; the printed form must."""
    rls = RecursiveLeastSquares()
    for _ in range(50):
        rls.update((0.0, 0.0, 0.0, 1.0), -2.0)
    assert rls.predict((0.0, 0.0, 0.0, 1.0)) == pytest.approx(-2.0, abs=0.01)


def test_forgets_a_world_that_is_gone() -> None:
    rng = random.Random(2)
    rls = RecursiveLeastSquares()
    for truth in ((0.1, 0.1, 1.0, 0.0), (0.5, 2.0, 0.2, 1.0)):
        for _ in range(2000):
            x = _features(rng)
            rls.update(x, _value(truth, x))
    assert rls.weights == pytest.approx((0.5, 2.0, 0.2, 1.0), abs=0.01)


def _stay_finite(rls: RecursiveLeastSquares, updates: int) -> None:
    """Long stretches that excite one direction only, wake-ups in another, wild scales, repeats."""
    rng = random.Random(3)
    modes: list[Features] = [(0.0, 0.0, 0.0, 1.0), (0.0, 2.0, 0.0, 1.0), (8.0, 8.0, 8.0, 1.0), (1e-9, 1e5, 1e-9, 1.0)]
    mode = modes[0]
    for count in range(updates):
        if count % 5000 == 0:
            mode = modes[rng.randrange(len(modes))]
        rls.update(mode, 0.001 * (count % 7))
        if count % 100_000 == 0:
            assert rls.trace <= 2.0 * rls.trace_limit
    assert all(map(isfinite, rls.weights))
    assert isfinite(rls.trace)


def test_stays_finite_where_plain_forgetting_overflows() -> None:
    # 0.992^-n passes the largest float near n = 88,700.
    _stay_finite(RecursiveLeastSquares(), 250_000)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 5), max_size=60))
def test_no_input_breaks_it(outcomes: list[tuple[float, float, float, float, float]]) -> None:
    rls = RecursiveLeastSquares()
    for a, b, c, d, y in outcomes:
        rls.update((a, b, c, d), y)
    assert all(map(isfinite, rls.weights))
    rng, truth = random.Random(4), (0.0, 1.0, 0.5, 0.1)
    for _ in range(1500):
        x = _features(rng)
        rls.update(x, _value(truth, x))
    x = (1.0, 1.0, 1.0, 1.0)
    assert rls.predict(x) == pytest.approx(_value(truth, x), abs=0.05)
