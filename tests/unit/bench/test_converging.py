"""When a rate has settled after a change of load."""

from __future__ import annotations

from math import isnan

import pytest

from plumage_bench.benches.vllm_feather.converging import seconds_to_converge


def made(*rates: float) -> tuple[list[float], list[float]]:
    """Tokens per tenth of a second; each rate lasts one second."""
    times, totals, sum_ = [], [], 0.0
    for second, rate in enumerate(rates):
        for tenth in range(10):
            sum_ += rate / 10
            times.append(second + (tenth + 1) / 10)
            totals.append(sum_)
    return times, totals


@pytest.mark.parametrize(
    ("rates", "seconds"),
    [
        ((5, 5, 100, 100, 100, 100, 100, 100), 0),
        ((5, 5, 40, 60, 100, 100, 100, 100, 100, 100), 2),
        ((5, 5, 100, 100, 40, 100, 100, 100, 100, 100), 3),
    ],
)
def test_last_window_below_decides(rates: tuple[float, ...], seconds: float) -> None:
    times, totals = made(*rates)
    assert seconds_to_converge(times, totals, 2.0, float(len(rates)), 1.0) == seconds


def test_windows_before_the_change_or_after_the_end_do_not_count() -> None:
    times, totals = made(0, 0, 90, 100, 100, 100, 3)
    assert seconds_to_converge(times, totals, 2.0, 6.0, 1.0) == 0


def test_falling_rate_has_not_converged() -> None:
    times, totals = made(100, 100, 100, 100, 100, 50)
    assert isnan(seconds_to_converge(times, totals, 0.0, 6.0, 1.0))


def test_too_few_windows_have_no_verdict() -> None:
    times, totals = made(100, 100, 100)
    assert isnan(seconds_to_converge(times, totals, 0.0, 3.0, 1.0))
    assert isnan(seconds_to_converge([], [], 0.0, 9.0, 1.0))
