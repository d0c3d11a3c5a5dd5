"""No figure of a closing line rests on one seed, and the JSON has each seed's value."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from plumage_bench.benches import cht, decision, directory, scale, trace
from plumage_bench.benches.trace.routed import Routed, fleets
from plumage_bench.harness import Context


def context(name: str, out: Path) -> Context:
    return Context(name, True, 5, out, Console(file=io.StringIO()))


def test_benchmarks_have_several_seeds() -> None:
    counts = (cht.SEEDS, decision.SEEDS, directory.SEEDS, directory.SEEDS_QUICK, scale.SEEDS, trace._SEEDS_QUICK)
    assert min(counts) >= 2


def test_cht_reports_the_median_of_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"REQUESTS": 40, "TOKENS": 200, "FIND_BEST": 300, "FEW": 5, "MANY": 50}
    for name, value in small.items():
        monkeypatch.setattr(cht, name, value)
    report = cht.run(context("cht", tmp_path))
    found = report.data["by_seed"]
    assert [one["seed"] for one in found] == [5, 6, 7]
    assert len({one["total_s"] for one in found}) == 3
    assert report.keys["total_s"] == round(median(one["total_s"] for one in found), 4)
    assert report.keys["mismatches"] == 0


def test_decision_reports_the_median_of_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WARM_UP": 20, "QUICK_REQUESTS": 50, "MANY": 8}.items():
        monkeypatch.setattr(decision, name, value)
    report = decision.run(context("decision", tmp_path))
    few, many = (report.data["by_seed"][f"{count} replicas, 6 messages"] for count in (4, 8))
    assert [one["seed"] for one in few] == [one["seed"] for one in many] == [5, 6, 7]
    assert report.keys["mean_us_4"] == median(one["mean"] for one in few)
    assert report.keys["p99_us_1000"] == median(one["P99"] for one in many)


def test_directory_is_filled_with_every_seed_and_in_a_quick_run_in_turns() -> None:
    assert list(directory._fills([1, 2], quick=True)) == [(1, 1), (1, 2), (4, 2), (32, 1)]
    assert len(list(directory._fills([1, 2, 3], quick=False))) == 9


def test_trace_fleets_have_their_seed_in_the_name() -> None:
    runs = fleets([1, 2], 1.0)
    results = {fleet: Routed(*[float(fleet.seed)] * 9) for fleet in runs}
    rows = trace._of_seed(results, 2)
    assert set(rows) == {fleet.label for fleet in runs}
    assert {row.ttft_p50 for row in rows.values()} == {2.0}
