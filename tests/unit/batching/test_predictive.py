"""The stop policy that predicts: its fit of the step time, and what it decides by it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from math import inf, isfinite, nan

import pytest

from plumage.batching.interface import BatchShape, BatchState, Decision, StepOutcome
from plumage.batching.stop import Predictive
from plumage.batching.stop.shared import STEPS, checked, experience, merged
from plumage.batching.stop.step_time import COEFFICIENTS, StepTime
from plumage.batching.stop.table import Row
from plumage.errors import ConfigurationError

LAW = dict(zip(COEFFICIENTS, (5e-3, 2e-4, 1e-4, 3e-5, 1e-6, 2e-5), strict=True))


def seconds(x: list[float], law: dict[str, float] = LAW) -> float:
    return sum(cost * value for cost, value in zip(law.values(), x, strict=True))


def step(rng: random.Random) -> list[float]:
    return [1.0, rng.randint(1, 64), rng.choice([0, 0, 100]), *(rng.randint(0, 2000) for _ in range(3))]


def test_fit_recovers_the_law_from_noisy_steps() -> None:
    rng, fit = random.Random(1), StepTime()
    for _ in range(3000):
        x = step(rng)
        fit.learn(x, seconds(x) * rng.gauss(1.0, 0.03))
    for name, cost in fit.coefficients.items():
        assert cost == pytest.approx(LAW[name], rel=0.1, abs=2e-6), name
    assert fit.noise == pytest.approx(0.03, rel=0.2)


def test_fit_follows_a_device_that_becomes_slower() -> None:
    rng, fit = random.Random(2), StepTime()
    for factor in (1.0, 2.0):
        for _ in range(6000):
            x = step(rng)
            fit.learn(x, factor * seconds(x))
    x = [1.0, 32.0, 0.0, 500.0, 500.0, 500.0]
    assert fit.predict(x)[0] == pytest.approx(2.0 * seconds(x), rel=0.05)


def test_no_coefficient_is_negative() -> None:
    rng, fit = random.Random(3), StepTime()
    for _ in range(500):
        x = step(rng)
        fit.learn(x, max(0.05 - 2e-4 * x[1], 1e-3))  # larger batches are faster, which no device is
    assert min(fit.coefficients.values()) >= 0.0


def test_prediction_beyond_what_was_seen_is_uncertain() -> None:
    """A batch of always 64 requests does not show what a step without requests costs."""
    rng, fit = random.Random(4), StepTime()
    full, half = [1.0, 64.0, 0.0, 100.0, 0.0, 1948.0], [1.0, 32.0, 0.0, 100.0, 0.0, 924.0]
    for _ in range(3000):
        fit.learn(full, seconds(full) * rng.gauss(1.0, 0.01))
    predicted, error = fit.predict(full)
    assert predicted == pytest.approx(seconds(full), rel=0.01)
    assert error < 0.05 * predicted
    assert fit.predict(half)[1] > 0.2 * fit.predict(half)[0]


def test_nothing_is_predicted_before_enough_steps() -> None:
    fit = StepTime()
    assert fit.predict([1.0] * 6) == (0.0, inf)
    assert set(fit.coefficients.values()) == {0.0}


def test_steps_that_are_summed_up_count_as_many() -> None:
    """vLLM's plugin sums up to 64 steps of a full batch."""
    fit, x = StepTime(), [1.0, 32.0, 0.0, 500.0, 500.0, 500.0]
    fit.learn(x, seconds(x), steps=64)
    assert fit.predict(x)[0] == pytest.approx(seconds(x), rel=0.05)


@pytest.mark.parametrize("wrong", [0.0, -1.0, nan, inf])
def test_impossible_time_changes_nothing(wrong: float) -> None:
    rng, fit, twin = random.Random(5), StepTime(), StepTime()
    for _ in range(200):
        x = step(rng)
        fit.learn(x, seconds(x))
        twin.learn(x, seconds(x))
        fit.learn(x, wrong)
    assert fit.coefficients == twin.coefficients


def test_single_long_step_hardly_moves_the_fit() -> None:
    rng, fit = random.Random(6), StepTime()
    for number in range(1000):
        x = step(rng)
        fit.learn(x, 3600.0 if number == 500 else seconds(x))
    x = [1.0, 32.0, 0.0, 500.0, 500.0, 500.0]
    assert fit.predict(x)[0] == pytest.approx(seconds(x), rel=0.05)


@pytest.mark.parametrize("first", [0, 20, 500])
@pytest.mark.parametrize("wrong", [1e-6, 1e-3, 1e-320])
def test_single_short_step_hardly_moves_the_fit(first: int, wrong: float) -> None:
    rng, fit = random.Random(6), StepTime()
    for number in range(1000):
        x = step(rng)
        fit.learn(x, wrong if number == first else seconds(x))
    x = [1.0, 32.0, 0.0, 500.0, 500.0, 500.0]
    assert fit.predict(x)[0] == pytest.approx(seconds(x), rel=0.1)


def learned(seed: int, steps: int = 3000) -> StepTime:
    rng, fit = random.Random(seed), StepTime()
    for _ in range(steps):
        x = step(rng)
        fit.learn(x, seconds(x) * rng.gauss(1.0, 0.03))
    return fit


def test_new_engine_predicts_by_the_fit_of_others() -> None:
    fresh = StepTime()
    start = merged([learned(seed).rows() for seed in range(3)])
    fresh.merge(start)
    x = [1.0, 32.0, 0.0, 500.0, 500.0, 500.0]
    predicted, error = fresh.predict(x)
    assert predicted == pytest.approx(seconds(x), rel=0.05)
    assert 0.0 < error < 0.1 * predicted
    assert experience(fresh.rows()) == STEPS
    assert list(fresh.rows()) == start


def test_own_steps_outweigh_the_fit_of_others() -> None:
    rng, fit = random.Random(9), StepTime()
    fit.merge(merged([learned(1).rows()]))
    for _ in range(3000):
        x = step(rng)
        fit.learn(x, 2.0 * seconds(x))
    x = [1.0, 32.0, 0.0, 500.0, 500.0, 500.0]
    assert fit.predict(x)[0] == pytest.approx(2.0 * seconds(x), rel=0.1)


def test_fit_without_steps_shares_nothing() -> None:
    assert list(StepTime().rows()) == []
    assert experience(StepTime().rows()) == 0.0


def test_fit_of_a_batch_that_never_changes_is_valid() -> None:
    """Its sums depend on one another, and no step had a prefill."""
    fit, fresh = StepTime(), StepTime()
    for _ in range(3000):
        fit.learn([1.0, 64.0, 0.0, 100.0, 0.0, 1948.0], 0.05)
    fresh.merge(checked(list(fit.rows())))
    assert experience(fresh.rows()) == experience(fit.rows())


@pytest.mark.parametrize(
    ("place", "wrong"),
    [*itertools.product((0, 1, 6, 7, 26), (nan, inf, -1e9)), (0, 1e-9), (7, 1e-9), (1, 1e9), (6, 1e9), (26, 1e9)],
)
def test_sums_that_contradict_one_another_change_nothing(place: int, wrong: float) -> None:
    rows, fit = list(learned(1).rows()), learned(2)
    before = list(fit.rows())
    rows[place] = (*rows[place][:5], wrong)
    with pytest.raises(ConfigurationError):
        fit.merge(rows)
    assert list(fit.rows()) == before


@pytest.mark.parametrize("seed", range(200))
def test_damaged_sums_are_refused_or_can_be_fitted(seed: int) -> None:
    """Whatever their size: an engine that can't fit its step time would switch the policy off."""
    rng, fit = random.Random(seed), learned(2, 100)
    rows = list(learned(1, 300).rows())
    for place in rng.choices(range(len(rows)), k=rng.randint(1, 5)):
        rows[place] = (*rows[place][:5], rng.choice([0.0, 1e-320, 1e308, -1e308, 1e200, -1e-200, 5.0]))
    with suppress(ConfigurationError):
        fit.merge(rows)
    fit.learn([1.0, 32.0, 0.0, 500.0, 500.0, 500.0], 0.05, steps=64)
    assert all(map(isfinite, (*fit.coefficients.values(), *fit.predict([1.0] * 6))))


@pytest.mark.parametrize("steps", [1.0, 1e-320])
def test_sums_too_small_for_a_step_are_refused(steps: float) -> None:
    rows = [(*row[:4], row[4] * steps, row[5] * 1e-320) for row in learned(1, 300).rows()]
    with pytest.raises(ConfigurationError):
        StepTime().merge(rows)


@pytest.mark.parametrize("change", [lambda rows: rows[1:], lambda rows: [*rows[:-1], (*rows[-1][:4], 1.0, rows[-1][5])],
                                    lambda rows: [*rows, (3, 1, 2, "Add", 10.0, 5000.0)], lambda rows: []])  # fmt: skip
def test_rows_of_no_fit_are_refused(change: Callable[[list[Row]], list[Row]]) -> None:
    with pytest.raises(ConfigurationError):
        Predictive().merge(change(list(learned(1, 100).rows())))


LEVELS, TAIL = 32, 1
ALONE = BatchShape(16, 16 * LEVELS, LEVELS - TAIL + 16 * TAIL, LEVELS - TAIL)
"""A batch of one group, with a candidate of another group of which fifteen more wait."""


def question(shape: BatchShape) -> BatchState:
    return BatchState(shape.requests, shape.tip, shape.tip, 0, 15, LEVELS - TAIL, LEVELS, LEVELS, shape)


def shape(groups: int, requests: int) -> BatchShape:
    shared = LEVELS - TAIL
    return BatchShape(requests, requests * LEVELS, groups * shared + requests * TAIL, shared if groups == 1 else 0)


def run(policy: Predictive, batch: BatchShape, law: dict[str, float], rng: random.Random, steps: int = 1) -> None:
    of_all = batch.tip * (batch.requests - 1)
    x = [1.0, batch.requests, 0.0, batch.distinct, of_all, batch.levels - batch.distinct - of_all]
    for _ in range(steps):
        policy.observe(StepOutcome(seconds(x, law) * rng.gauss(1.0, 0.02), batch.requests, 0, 1, 1, batch))


def trained(law: dict[str, float]) -> Predictive:
    policy, rng = Predictive(), random.Random(7)
    for _ in range(1500):
        run(policy, shape(rng.randint(1, 4), rng.randint(4, 32)), law, rng)
    return policy


def test_stops_where_common_reads_are_much_cheaper_than_others() -> None:
    cliff = LAW | {"level_of_all": 1e-6, "level_of_some": 1e-4, "step": 1e-4}
    assert trained(cliff).decide(question(ALONE)) is Decision.STOP


def test_adds_where_a_step_costs_the_same_for_any_batch() -> None:
    flat = dict.fromkeys(COEFFICIENTS, 0.0) | {"step": 0.02}
    assert trained(flat).decide(question(ALONE)) is Decision.ADD


def test_fresh_engine_adds() -> None:
    policy, rng = Predictive(), random.Random(8)
    for _ in range(31):
        assert policy.decide(question(ALONE)) is Decision.ADD
        run(policy, ALONE, LAW, rng)


def test_adds_where_a_stop_protects_nothing() -> None:
    free = question(ALONE)._replace(loss=0, sibling_gain=0)
    cliff = LAW | {"level_of_all": 1e-6, "level_of_some": 1e-4, "step": 1e-4}
    assert trained(cliff).decide(free) is Decision.ADD


def test_state_without_a_shape_is_added() -> None:
    assert Predictive().decide(BatchState(16, 31, 31, 0, 15, 31)) is Decision.ADD


def test_trials_cost_a_small_part_of_the_time() -> None:
    """Always the same full and mixed batch: nothing shows what another batch costs, so it may try, but rarely."""
    policy, rng, mixed = Predictive(), random.Random(9), shape(4, 32)
    state = BatchState(32, 0, 0, 0, 15, LEVELS - TAIL, LEVELS, TAIL, mixed)
    stops = 0
    for _ in range(2000):
        run(policy, mixed, LAW, rng)
        policy._until = 0.0  # each trial is a new one
        stops += policy.decide(state) is Decision.STOP
    assert 0 < policy._cost <= 0.03 * policy._seconds
    assert 0 < stops < 400


def test_uncertain_gain_is_charged_and_each_trial_more_than_the_one_before() -> None:
    policy, rng, mixed = Predictive(), random.Random(10), shape(4, 32)
    state = BatchState(32, 0, 0, 0, 15, LEVELS - TAIL, LEVELS, TAIL, mixed)
    costs = []
    for _ in range(4000):
        run(policy, mixed, LAW, rng)
        policy.decide(state)
        if not costs or policy._cost != costs[-1]:
            costs.append(policy._cost)
    charges = [later - earlier for earlier, later in itertools.pairwise(costs)]
    assert len(charges) >= 2
    assert charges[1] > 1.5 * charges[0] > 0.0


def test_steps_without_a_shape_or_requests_are_not_learned() -> None:
    policy = Predictive()
    for _ in range(100):
        policy.observe(StepOutcome(0.01, 4))
        policy.observe(StepOutcome(0.01, 0, shape=BatchShape(0, 0, 0, 0)))
    assert policy.step_time.noise == inf
