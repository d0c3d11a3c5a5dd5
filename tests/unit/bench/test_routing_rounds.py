"""The two rounds of the search for the highest rate: who is ranked, and by which seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plumage.errors import ConfigurationError
from plumage_bench.harness import Context, Report
from plumage_bench.pairs import PairedRatio
from plumage_bench.routing import bench as routing_bench
from plumage_bench.routing import runs as routing_runs
from plumage_bench.routing.bench import RoutingWorkload
from plumage_bench.routing.contenders import AGAIN, BASELINES, CACHE_AWARE, OURS, QUICK_BASELINES, Contender
from plumage_bench.routing.crossing import Curve
from plumage_bench.routing.report import (
    Rates,
    equal_keys,
    equal_table,
    finals_table,
    rate_keys,
    rate_table,
    setting_keys,
    verdict,
)
from plumage_bench.routing.scenario import Figures, Scenario
from plumage_bench.workloads import GspShape

_CELL = (4, "stated")
_LUCKY, _STEADY, _SLOW = BASELINES[1], BASELINES[4], BASELINES[2]
_OURS_LRU, _EQUAL = OURS.over("Lru"), BASELINES[6].over(OURS.eviction)


def _curve(rung: int) -> Curve:
    """Crosses 5 % at the rung; the late share doubles from one rung to the next."""
    return Curve({rung + step: [0.05 * 2.0**step] * 3 for step in range(-2, 3)})


def _rates(**finals: Any) -> Rates:
    seeds = {
        OURS: [10.0, 10.0],
        CACHE_AWARE: [5.0, 5.0],
        _LUCKY: [12.0, 12.0],
        _STEADY: [10.0, 11.0],
        _SLOW: [2.0, 2.0],
    }
    return Rates({_CELL: seeds}, OURS, **finals)


def test_ratios_without_a_second_round_are_taken_seed_by_seed() -> None:
    assert _rates().over(_CELL, _rates().baselines) == pytest.approx(10.0 / 12.0)


def test_second_round_alone_ranks_its_contenders() -> None:
    rates = _rates(finals={_CELL: {OURS: _curve(50), CACHE_AWARE: _curve(40), _LUCKY: _curve(47), _STEADY: _curve(51)}})
    assert rates.over(_CELL, rates.baselines) == pytest.approx(
        1 / 1.05
    )  # the steady one; the lucky and the slow one are out
    assert rates.over(_CELL, [CACHE_AWARE]) == pytest.approx(1.05**10)
    assert rates.mean(_CELL, _SLOW) == pytest.approx(2.0)
    shown = finals_table(rates)
    assert [row[1] for row in shown.rows] == [_STEADY.label, _LUCKY.label, CACHE_AWARE.label]
    assert shown.rows[0][4:] == pytest.approx([1 / 1.05, 1 / 1.05, 1 / 1.05, 3])


class _Fleet:
    """Stands for the serving processes. Each true rate is 10; in the first round the gateway was lucky."""

    def __init__(self, calls_left: int = -1) -> None:
        self.calls_left = calls_left  # then the run is interrupted; negative: never
        self.first: set[int] = set()
        self.floors: set[float] = set()  # … below which it searched for nobody
        self.second: dict[Contender, set[int]] = {}

    def __call__(self, function: Any, calls: Sequence[tuple[Any, ...]], advance: Any, ended: Any = None) -> list[Any]:
        found = []
        for index, call in enumerate(calls):
            if self.calls_left == 0:
                raise KeyboardInterrupt
            self.calls_left -= 1
            found.append(getattr(self, function.__name__)(*call))
            if ended is not None:
                ended(index, found[-1])
        return found

    def measure(self, *_: Any) -> Figures:
        return Figures([0.1], [0.2], 0.5, 1.0, 0.0, 0.0)

    def highest_rate(
        self, contender: Contender, scenario: Scenario, seed: int, tolerance: float, stride: float = 1.3,
        floor: float = 0.0,
    ) -> float:  # fmt: skip
        self.first.add(seed)
        self.floors.add(floor)
        rates = {OURS: 10.0, AGAIN: 10.1, _OURS_LRU: 9.0, CACHE_AWARE: 6.0, _LUCKY: 14.0, _STEADY: 12.5}
        rates |= {_EQUAL: 8.0, QUICK_BASELINES[0]: 9.5}
        return rates.get(contender, 2.0)

    def late_share(self, contender: Contender, scenario: Scenario, seed: int) -> float:
        self.second.setdefault(contender, set()).add(seed)
        return min(0.05 * (scenario.rate / 10.0) ** 5, 1.0)


def _run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: bool, workers: str = "4", calls: int = -1, resume: str = "0"
) -> tuple[_Fleet, Report]:
    fleet = _Fleet(calls)
    monkeypatch.setattr(routing_runs, "in_parallel", fleet)
    workload = RoutingWorkload("gsp", lambda factor: GspShape(groups=8, queries=100), 20.0, 20.0, {})
    options = {"workers": workers, "devices": "stated", "resume": resume}
    context = Context("gsp", quick, 1, tmp_path, Console(quiet=True), options)
    return fleet, routing_bench.run_routing(workload, context)


def test_contenders_near_the_best_are_ranked_on_fresh_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet, report = _run(monkeypatch, tmp_path, quick=False)
    assert set(fleet.second) == {OURS, AGAIN, _OURS_LRU, CACHE_AWARE, _LUCKY, _STEADY, _EQUAL}
    for seeds in fleet.second.values():
        assert len(seeds) == 20  # of 800 requests each
        assert not seeds & fleet.first
    assert report.keys["products_rank"] == pytest.approx(1.0)  # the first round alone gives 10 / 14
    assert report.keys["rank_equal"] == pytest.approx(1.0)
    assert (report.keys["pairs"], report.keys["rank_verdict"]) == (20, "first")


def test_interrupted_run_goes_on_and_ends_with_the_same_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, report = _run(monkeypatch, tmp_path, quick=False)
    part = tmp_path / "part"
    part.mkdir()
    for calls in (300, 320, 500):  # in the first round, and twice in the second
        with pytest.raises(KeyboardInterrupt):
            _run(monkeypatch, part, quick=False, calls=calls, resume="1")
    last, again = _run(monkeypatch, part, quick=False, resume="1")
    assert again.keys == report.keys
    assert len(last.second) < len(whole.second), "curves that were measured before are measured again"


def test_results_of_another_commit_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(monkeypatch, tmp_path, quick=False, calls=300)
    monkeypatch.setenv("PLUMAGE_COMMIT", "0123456789")
    with pytest.raises(ConfigurationError, match="its commit differ"):
        _run(monkeypatch, tmp_path, quick=False, resume="1")


def test_search_in_a_large_fleet_stops_far_below_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small, _ = _run(monkeypatch, tmp_path, quick=False)
    assert small.floors == {0.0}
    large, report = _run(monkeypatch, tmp_path, quick=False, workers="16")
    assert sorted(large.floors) == pytest.approx([0.0, 7.0])
    assert (len(small.first), len(large.first)) == (5, 1)
    assert "≤ 7" in [cell for row in report.tables[3].rows for cell in row]
    assert report.keys["products_rank"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("workers", "5"), ("devices", "q"), ("workers", "4,"), ("sweep", "yes"), ("sweep", "true")],
)
def test_wrong_option_is_reported_before_the_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, value: str
) -> None:
    measured: list[Any] = []

    def watched(*given: Any) -> list[Any]:
        measured.append(given)
        return _Fleet()(*given)

    monkeypatch.setattr(routing_runs, "in_parallel", watched)
    workload = RoutingWorkload("gsp", lambda factor: GspShape(groups=8, queries=100), 20.0, 20.0, {})
    context = Context("gsp", True, 1, tmp_path, Console(quiet=True), {option: value})
    with pytest.raises(ConfigurationError, match=f"{option}={value}: "):
        routing_bench.run_routing(workload, context)
    assert measured == []


def test_quick_run_has_the_first_round_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet, report = _run(monkeypatch, tmp_path, quick=True)
    assert not fleet.second
    assert report.keys["products_rank"] == pytest.approx(10.0 / 9.5)  # among the contenders of a quick run
    assert report.keys["rank_equal"] == pytest.approx(9.0 / 9.5), "the lower of the two, each with its own eviction"
    assert report.keys["aa"] == pytest.approx(10.0 / 10.1)
    assert (report.keys["pairs"], report.keys["rank_verdict"]) == (5, "behind")


def test_baseline_counts_with_the_eviction_that_it_ran_on() -> None:
    """At 24a58ae `rank` compared ours with its own eviction to baselines with LRU (10 ÷ 9 here),
    and called it routing.
    """
    baseline = BASELINES[3]
    rates = {OURS: [10.0] * 5, _OURS_LRU: [8.0] * 5, baseline: [9.0] * 5, baseline.over(OURS.eviction): [9.5] * 5}
    found = Rates({_CELL: rates}, OURS).equals(_CELL)
    assert {eviction: ratio.ratio for eviction, (_, ratio) in found.items()} == {
        "Lru": pytest.approx(8.0 / 9.0),
        OURS.eviction: pytest.approx(10.0 / 9.5),
    }


def _flat() -> Curve:
    """As on a device on which one request alone is late: the share does not depend on the rate."""
    return Curve({rung: [0.15] * 5 for rung in range(-2, 3)})


_OTHER_CELL = (4, "measured")
_ALL = (OURS, AGAIN, _OURS_LRU, CACHE_AWARE, CACHE_AWARE.over(OURS.eviction))


def _two_cells(**finals: Any) -> Rates:
    """Ours serves 2 where others serve 1; in the other cell every search ended at its lowest rate."""
    seen = {one: [2.0 if one.policy == OURS.policy else 1.0] * 5 for one in _ALL}
    return Rates({_CELL: seen, _OTHER_CELL: dict.fromkeys(_ALL, [0.002] * 5)}, OURS, **finals)


@pytest.mark.parametrize("second_round", [False, True])
def test_cell_that_nobody_serves_in_time_is_in_no_figure(second_round: bool) -> None:
    reached = {one: _curve(60 if one.policy == OURS.policy else 50) for one in _ALL}
    curves = {_CELL: reached, _OTHER_CELL: {one: _flat() for one in _ALL}}
    rates = _two_cells(finals=curves) if second_round else _two_cells()
    best = pytest.approx(1.05**10 if second_round else 2.0)
    assert rate_keys(rates) == {"products_rank": best, "rate_gain": best, "unreached": 1}
    assert (equal_keys(rates)["rank_equal"], equal_keys(rates)["aa"]) == (best, 1.0)
    verdicts = {row[0]: row[-1] for row in equal_table(rates).rows}
    assert verdicts == {"4 workers, stated": "first", "4 workers, measured": "no rate"}
    assert [row[-1] for row in rate_table(rates).rows[-2:]] == ["no rate", "no rate"]
    assert {row[0] for row in finals_table(rates).rows} == ({"4 workers, stated"} if second_round else set())


def test_run_without_any_rate_in_time_has_no_figure_of_rates() -> None:
    rates = Rates({_OTHER_CELL: dict.fromkeys(_ALL, [0.002] * 5)}, OURS)
    assert (equal_keys(rates), rate_keys(rates)) == ({}, {"unreached": 1})


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (PairedRatio(1.02, 1.0, 1.04, 5), "first"),
        (PairedRatio(1.02, 0.99, 1.05, 5), "tie"),
        (PairedRatio(0.98, 0.95, 1.0, 5), "tie"),
        (PairedRatio(0.98, 0.97, 0.99, 5), "behind"),
    ],
)
def test_verdict_is_the_intervals(ratio: PairedRatio, expected: str) -> None:
    assert verdict(ratio) == expected


def test_default_setting_is_judged_by_throughput_and_tail() -> None:
    def figures(first: float, tail: float, throughput: float) -> Figures:
        return Figures([first] * 90 + [tail] * 10, [1.0], 0.5, throughput, 0.0, 0.0)

    baseline = BASELINES[5]
    found = {
        OURS: figures(2.0, 30.0, 9.0),
        _OURS_LRU: figures(2.0, 40.0, 8.0),
        baseline: figures(1.0, 20.0, 10.0),
        baseline.over(OURS.eviction): figures(4.0, 30.0, 9.0),
    }
    assert setting_keys(found) == {
        "setting_throughput_over_best": pytest.approx(0.8),
        "setting_p50_over_best": pytest.approx(2.0),
        "setting_p95_over_best": pytest.approx(2.0),
    }
