"""Counters become rates over the last minute, for any clocks and restarts of the processes."""

from __future__ import annotations

import pytest

from plumage.fleet_report import AgentReport, HistogramReport
from plumage_operator.autoscaling.pool_load import ReportWindow

HOUR = 3600.0


def report(at: float, tokens: int, *, started: float = 1.0, waits: tuple[int, int] = (0, 0)) -> AgentReport:
    histogram = HistogramReport([0.1, 1.0], [waits[0], sum(waits), sum(waits)], 0.0)
    return AgentReport("r0", at=at, started=started, output_tokens=tokens, queue_wait=histogram)


def tokens(window: ReportWindow[AgentReport]) -> float | None:
    return window.gained(lambda one: one.output_tokens)


def test_single_report_has_no_rate() -> None:
    window = ReportWindow[AgentReport]()
    assert tokens(window) is None
    window.add(report(HOUR, 500), 0.0)
    assert tokens(window) is None
    assert window.histogram(lambda one: one.queue_wait) is None


def test_rate_covers_the_last_minute() -> None:
    window = ReportWindow[AgentReport]()
    for look in range(20):
        window.add(report(HOUR + 15 * look, 150 * look), 15.0 * look)
    assert (tokens(window), window.seconds) == (600, 60.0)
    assert window.gained(lambda one: one.output_tokens, back=1) == 150


def test_infrequent_polls_still_have_a_rate() -> None:
    window = ReportWindow[AgentReport]()
    for look in range(3):
        window.add(report(HOUR + 90 * look, 900 * look), 90.0 * look)
    assert (tokens(window), window.seconds) == (900, 90.0)


def test_clock_an_hour_off_changes_nothing() -> None:
    window = ReportWindow[AgentReport]()
    window.add(report(5 * HOUR, 0), 0.0)
    window.add(report(5 * HOUR + 15, 150), 15.0)
    assert (tokens(window), window.seconds, window.seen) == (150, 15.0, 15.0)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_clock_set_between_two_polls_changes_no_rate(jump: float) -> None:
    window = ReportWindow[AgentReport]()
    window.add(report(5 * HOUR, 0), 0.0)
    window.add(report(5 * HOUR + jump + 15, 150), 15.0)
    assert (tokens(window), window.seconds) == (150, 15.0)


def test_restarted_process_counts_from_its_start() -> None:
    window = ReportWindow[AgentReport]()
    window.add(report(HOUR, 90_000), 0.0)
    window.add(report(HOUR + 15, 50, started=HOUR + 10), 15.0)
    assert (tokens(window), window.seconds) == (50, 5.0)


def test_falling_counters_have_no_negative_rate() -> None:
    window = ReportWindow[AgentReport]()
    window.add(report(HOUR, 90), 0.0)
    window.add(report(HOUR + 15, 30), 15.0)
    assert tokens(window) == 0.0


def test_percentiles_cover_the_window() -> None:
    window = ReportWindow[AgentReport]()
    window.add(report(HOUR, 0, waits=(1000, 0)), 0.0)
    window.add(report(HOUR + 15, 0, waits=(1000, 10)), 15.0)
    found = window.histogram(lambda one: one.queue_wait)
    assert found is not None
    assert found.count == 10
    assert found.quantile(0.5) == pytest.approx(0.55)
