"""The rate at which requests become late, found from noisy late shares, with the same rungs for all contenders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from plumage_bench.routing.crossing import RUNG, Curve, climb, rate_ratio

_SEEDS = 24


def _noisy(limits: Sequence[float], trial: int = 0, spread: float = 0.3) -> Callable[..., list[list[float]]]:
    """Contenders whose late share is on average 5 % at their limit and grows by a power of the rate."""

    def shares(wanted: Sequence[tuple[int, float]]) -> list[list[float]]:
        found = []
        for index, rate in wanted:
            mean = 0.05 * (rate / limits[index]) ** 6.0
            rngs = [random.Random(f"{trial}-{index}-{rate:.6f}-{seed}") for seed in range(_SEEDS)]
            found.append([min(mean * rng.lognormvariate(-(spread**2) / 2, spread), 1.0) for rng in rngs])
        return found

    return shares


@pytest.mark.parametrize("start", [18.0, 30.0, 9.0])
def test_rate_is_found_from_a_distant_start(start: float) -> None:
    (curve,) = climb([start], _noisy([18.0]))
    assert curve.rate == pytest.approx(18.0, rel=0.03)
    assert not curve.missing()


def test_cliff_is_found_between_its_two_rungs() -> None:
    def shares(wanted: Sequence[tuple[int, float]]) -> list[list[float]]:
        return [[0.0 if rate < 40.0 else 0.6] for _, rate in wanted]

    (curve,) = climb([33.0], shares)
    assert 40.0 / RUNG**1.5 < curve.rate < 40.0 * RUNG**1.5


def test_search_ends_where_the_late_share_does_not_grow() -> None:
    asked = []

    def shares(wanted: Sequence[tuple[int, float]]) -> list[list[float]]:
        asked.extend(wanted)
        return [[0.01] for _ in wanted]

    (curve,) = climb([10.0], shares)
    assert curve.rate > 10.0
    assert len(asked) < 50


def test_rung_is_measured_once_and_shared_by_contenders() -> None:
    asked = []
    noisy = _noisy([18.0, 18.5])

    def shares(wanted: Sequence[tuple[int, float]]) -> list[list[float]]:
        asked.extend(wanted)
        return noisy(wanted)

    first, second = climb([15.0, 20.0], shares)
    assert len(asked) == len(set(asked))
    assert len(set(first.late) & set(second.late)) >= 4


def test_interval_covers_the_true_ratio_at_its_level() -> None:
    held = 0
    for trial in range(24):
        ratio = rate_ratio(*climb([20.0, 19.0], _noisy([20.0, 19.0], trial)))
        held += ratio.low <= 20.0 / 19.0 <= ratio.high
    assert held >= 20  # 95 % of 24 are 23


def test_contender_against_itself_is_one() -> None:
    (curve,) = climb([18.0], _noisy([18.0]))
    ratio = rate_ratio(curve, Curve(dict(curve.late)))
    assert (ratio.ratio, ratio.low, ratio.high, ratio.pairs) == (1.0, 1.0, 1.0, _SEEDS)
