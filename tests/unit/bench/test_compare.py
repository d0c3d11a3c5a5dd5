"""The comparison of two commits by a benchmark, with runs that return fixed figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plumage.errors import ConfigurationError
from plumage_bench import compare
from plumage_bench.compare import app, order_of_runs, ratio_of, source_path

BEFORE, AFTER = {"cpu_us": 100.0, "rps": 50.0, "none": 0.0}, {"cpu_us": 80.0, "rps": 60.0, "none": 0.0}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trees in the order of their runs."""
    trees: list[str] = []

    def run(tree: Path, words: Sequence[str]) -> Mapping[str, Any]:
        trees.append("after" if tree == compare.CHECKOUT else "before")
        return AFTER if tree == compare.CHECKOUT else BEFORE

    monkeypatch.setattr(compare, "_run", run)
    return trees


def test_ratio_above_one_is_better_for_both_directions() -> None:
    assert ratio_of("cpu_us", [BEFORE], [AFTER], lower=True).ratio == pytest.approx(1.25)
    assert ratio_of("rps", [BEFORE], [AFTER], lower=False).ratio == pytest.approx(1.2)


def test_commits_take_turns_to_run_first() -> None:
    after: list[Mapping[str, Any]] = []
    before: list[Mapping[str, Any]] = [{}]
    assert [first is after for first, _ in order_of_runs(4, after, before)] == [False, True, False, True]


def test_record_has_ratios_intervals_and_both_commits(
    tmp_path: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["HEAD", "decision", "--lower", "cpu_us", "--higher", "rps", "--pairs", "3", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["compare", *words])
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "compare-decision.json").read_text())
    assert record["keys"]["cpu_us"] == pytest.approx(1.25)
    assert record["keys"]["rps_pairs"] == 3
    assert record["before"] == record["commit"].removesuffix("+")
    assert record["seconds"] > 0
    assert {"machine", "versions"} <= record.keys()
    assert record["command"].endswith(" HEAD decision --lower cpu_us --higher rps --pairs 3"), "without the folder"
    assert runs == ["before", "after", "after", "before", "before", "after"]


@pytest.mark.parametrize("figure", ["none", "unknown"])
def test_figure_without_a_ratio_is_refused(
    tmp_path: Path, runs: list[str], figure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compare, "_worktree", lambda _: nullcontext(tmp_path)
    )  # a second of CPU; the test above has one
    words = ["HEAD", "decision", "--lower", figure, "--out", str(tmp_path)]
    with pytest.raises(ConfigurationError, match="there are: cpu_us, rps"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_unknown_commit_is_refused(runs: list[str], tmp_path: Path) -> None:
    words = ["no-such-commit", "decision", "--lower", "cpu_us", "--out", str(tmp_path)]
    with pytest.raises(ConfigurationError, match="no-such-commit"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert runs == []


def test_run_over_its_limit_is_an_error_that_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_RUN_LIMIT", 0.01)
    with pytest.raises(ConfigurationError, match="decision --quick took over 0 s: choose a smaller run"):
        compare._run(compare.CHECKOUT, ["decision", "--quick"])


def test_all_source_folders_are_on_the_path(tmp_path: Path) -> None:
    assert source_path(tmp_path).split(":")[0] == str(tmp_path / "core")
    packages = {path.parents[1].name for path in compare.CHECKOUT.glob("*/plumage*/__init__.py")}
    assert packages
    assert packages <= set(compare.SOURCES)
