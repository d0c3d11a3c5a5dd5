"""docs/evidence.md is generated from claims and kept runs, and lint fails where the page differs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plumage_bench.evidence.claim import Claim, Target, Verdict, at_least, at_most, between, exactly, judge
from plumage_bench.evidence.claims import NOT_KEPT, SECTIONS
from plumage_bench.evidence.figures import Cell, Computed, Either, Key, Measured, Minus, Over, measured
from plumage_bench.evidence.kept import command_of, commit_of, load_runs
from plumage_bench.evidence.page import page

ROOT = Path(__file__).parents[3]
EVIDENCE = ROOT / "docs" / "evidence"
SCRIPT = ROOT / "scripts" / "make_evidence.py"


def run_of(**keys: Any) -> dict[str, Any]:
    """A run that is judged, with its commit and a date after the last bootstrap."""
    record = {"benchmark": "gsp", "quick": False, "seed": 7, "options": {"workers": "4"}, "keys": keys, "tables": []}
    return {**record, "commit": "abc", "date": "2026-11-26"}


def without(run: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in keys}


def row_of(claim: Claim, runs: Mapping[str, Any]) -> list[str]:
    (row,) = (line for line in page([("One", [claim])], [], runs).splitlines() if line.startswith(f"| {claim.text} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize(
    ("target", "paper", "found", "verdict"),
    [
        (at_least(1), "", Measured(1.0), Verdict.PASSED),
        (at_least(1), "", Measured(0.999, 0.9, 1.1, 20), Verdict.MISSED),
        (at_least(1, by_bound=True), "", Measured(1.1, 0.99, 1.2, 20), Verdict.MISSED),
        (at_least(1, by_bound=True), "", Measured(1.1, 1.0, 1.2, 20), Verdict.PASSED),
        (at_least(1, by_bound=True), "", Measured(1.1), Verdict.MISSED),
        (at_most(50), "", Measured(50.0), Verdict.PASSED),
        (at_most(50, by_bound=True), "", Measured(40.0, 30.0, 51.0, 5), Verdict.MISSED),
        (exactly(0), "", Measured(1.0), Verdict.MISSED),
        (at_least(1.3), "P", Measured(1.004, 0.99, 1.02, 5), Verdict.REFUTED),
        (at_least(1.3), "P", Measured(1.28, 1.2, 1.35, 5), Verdict.MISSED),
        (between(0.04, 0.08), "P", Measured(0.484), Verdict.REFUTED),
        (between(0.4, 0.44), "P", Measured(0.42), Verdict.REPRODUCED),
        (Target(), "", Measured(3.0), Verdict.NO_TARGET),
        (at_least(1), "", None, Verdict.NOT_YET),
    ],
)
def test_verdict_follows_from_figure_interval_and_target(
    target: Target, paper: str, found: Measured | None, verdict: Verdict
) -> None:
    assert judge(Claim("it", "file", Key("it"), target, paper), found) is verdict


def test_claim_without_a_file_is_not_measurable_here() -> None:
    assert judge(Claim("it", "", None, at_least(1), "P"), None) is Verdict.NOT_HERE


def test_missing_run_or_key_names_its_command_and_no_figure() -> None:
    claim = Claim("rank", "gsp-quick", Key("rank_equal"), at_least(1), command="plumage bench gsp --quick")
    row = ["rank", "–", "–", "≥ 1", "**not measured yet**", "`plumage bench gsp --quick`", "–"]
    assert row_of(claim, {}) == row
    assert row_of(claim, {"gsp-quick": run_of(rank=1.1)}) == row


def test_row_has_figure_interval_command_commit_and_date() -> None:
    run = run_of(gain=1.25, gain_low=1.1, gain_high=1.4, gain_pairs=6)
    claim = Claim("gain", "gsp", Key("gain"), at_least(1))
    command = "`plumage bench gsp --seed 7 workers=4`"
    assert row_of(claim, {"gsp": run}) == [
        "gain", "1.25", "1.1 to 1.4 (95 %, 6 pairs)", "≥ 1", "passed", command, "abc, 2026-11-26",
    ]  # fmt: skip


def test_command_is_that_of_the_run_with_the_figure() -> None:
    claim = Claim("gain", "gsp", Key("gain"), command="plumage bench gsp")
    assert row_of(claim, {"gsp": run_of(gain=2)})[5] == "`plumage bench gsp --seed 7 workers=4`"
    assert row_of(claim, {"gsp": run_of(rank=2)})[5] == "`plumage bench gsp`"


@pytest.mark.parametrize(("pairs", "shown"), [(1, "one pair"), (3, "1.1 to 1.4 (range of 3 pairs)")])
def test_fewer_than_five_pairs_have_no_interval(pairs: int, shown: str) -> None:
    run = run_of(gain=1.25, gain_low=1.1, gain_high=1.4, pairs=pairs)
    assert row_of(Claim("gain", "gsp", Key("gain")), {"gsp": run})[2] == shown


_SHOWN = Claim("gain", "gsp", Key("gain"), at_least(1))
_OLD = [
    without(run_of(gain=2), "commit"),
    run_of(gain=2) | {"commit": ""},
    run_of(gain=2) | {"date": "2026-11-23"},
    without(run_of(gain=2), "date") | {"kept": "2026-11-24"},
]


@pytest.mark.parametrize("run", _OLD)
def test_old_run_is_shown_and_not_judged(run: dict[str, Any]) -> None:
    row = row_of(_SHOWN, {"gsp": run})
    assert (row[1], row[4]) == ("2", "**old run**")
    assert row_of(Claim("gain", "gsp", Key("gain")), {"gsp": run})[4] == "**old run**", "without a target too"


def test_first_run_with_a_manifests_settings_is_judged() -> None:
    assert row_of(_SHOWN, {"gsp": run_of(gain=2) | {"date": "2026-11-24"}})[4] == "passed"


def test_old_runs_are_counted_apart() -> None:
    other = Claim("rank", "gsp-quick", Key("gain"), at_least(1))
    lines = page([("One", [_SHOWN, other])], [], {"gsp": _OLD[0], "gsp-quick": run_of(gain=2)}).splitlines()
    assert "| old run | 1 |" in lines
    assert "| passed | 1 |" in lines


@pytest.mark.parametrize(
    ("pairs", "shown"),
    [(5, "1.1 to 1.4 (bootstrap, 5 pairs)"), (None, "1.1 to 1.4 (bootstrap, pairs not recorded)"), (3, "– (3 pairs)")],
)
def test_bootstrap_is_no_interval_of_95_percent(pairs: int | None, shown: str) -> None:
    keys = {"gain": 1.25, "gain_low": 1.1, "gain_high": 1.4} | ({} if pairs is None else {"pairs": pairs})
    assert row_of(_SHOWN, {"gsp": run_of(**keys) | {"date": "2026-11-25"}})[2] == shown
    assert "bootstrap" not in row_of(_SHOWN, {"gsp": run_of(**keys)})[2]


def test_interval_computed_from_pairs_is_of_95_percent_at_any_date() -> None:
    again = Computed(lambda run: Measured(1.25, 1.1, 1.4, 5, again=True))
    row = row_of(Claim("gain", "gsp", again), {"gsp": run_of() | {"date": "2026-11-25"}})
    assert row[2] == "1.1 to 1.4 (95 %, 5 pairs)"


_EQUAL = ("fleet", "eviction", "ours ÷ baseline", "low", "high", "seeds", "ours, req/s", "baseline",
          "ours ÷ ours, other seeds")  # fmt: skip
_SECOND = ("fleet", "baseline", "ours, req/s", "baseline", "ours ÷ baseline")


def full_run(*ratios: tuple[float, float]) -> dict[str, Any]:
    """A full routing run. ratios: ours ÷ the baseline with LRU, and ÷ cache-aware, of each device; the last device is
    one on which nobody reaches the limit."""
    tables: list[dict[str, Any]] = [
        {"title": "Routing at equal eviction", "columns": _EQUAL, "rows": []},
        {"title": "Lbgr + Hotness against those who may be first, on seeds", "columns": _SECOND, "rows": []},
    ]
    for number, (ratio, gain) in enumerate(ratios):
        spread = 1.1 if ratio != 1 else 1.0
        again = f"{0.9 + number / 10:.3f} (95 %: 0.800 to 1.300, 5 pairs)"
        tables[0]["rows"].append([number, "Lru", ratio, ratio / spread, ratio * spread, 5, ratio, 1.0, again])
        tables[1]["rows"] += [
            [number, "Dynamo + Lru", ratio, 1.0, ratio], [number, "Dynamo + Hotness", ratio, 1.0, ratio / 2],
            [number, "cache-aware + Lru", gain, 1.0, gain],
        ]  # fmt: skip
    keys = {"rank_equal": 1.0, "products_rank": 1.0, "rate_gain": 1.0, "aa": 1.0}
    return run_of(**keys) | {"tables": tables}


def test_device_that_nobody_serves_in_time_is_in_no_figure_of_rates() -> None:
    runs = {"longdoc": full_run((1.3, 4.0), (1.2, 3.0), (1.0, 1.0))}
    claims = [claim for _, section in SECTIONS for claim in section if claim.file == "longdoc"]
    shown = {claim.text: row_of(claim, runs)[1:3] for claim in claims}
    found = [figures for words, figures in shown.items() if " rate" in words or words.startswith("… ours ÷ ours")]
    assert found == [
        ["3", "–"],  # rate_gain
        ["1.2", "–"],  # products_rank
        ["1.2", "1.091 to 1.32 (95 %, 5 pairs)"],  # rank_equal
        ["1", "–"],  # the devices left out
        ["1", "0.8 to 1.3 (95 %, 5 pairs)"],  # aa, of the device of rank_equal
    ]


def test_run_in_which_nobody_serves_in_time_has_no_figure_of_rates() -> None:
    run = without(full_run((1.0, 1.0)), "keys") | {"keys": {"unreached": 1}}
    claims = [claim for _, section in SECTIONS for claim in section if claim.file == "longdoc"]
    rates = [
        claim for claim in claims if "ours ÷ cache-aware + LRU, least" in claim.text or "best other's" in claim.text
    ]
    assert [row_of(claim, {"longdoc": run})[4] for claim in rates] == ["**not measured yet**"] * 3


def test_figures_are_read_from_keys_and_from_cells_of_tables() -> None:
    rows = [["a", "x", 3.0], ["b", "y", "1.034 (95 %: 1.027 to 1.040, 20 pairs)"], ["b", "z", "12,000 (1 to 2)"]]
    run = run_of(one=1, two=2.0, low=0.5) | {
        "tables": [{"title": "Ratios, all", "columns": ["", "", "c"], "rows": rows}]
    }
    assert Cell("Ratios", ("a",), "c").read(run) == Measured(3.0)
    assert Cell("Ratios", ("b",), "c").read(run) == Measured(1.034, 1.027, 1.040, 20)
    assert Cell("Ratios", ("b", "z"), "c", pairs=5).read(run) == Measured(12_000.0, 1.0, 2.0, 5)
    assert Cell("Ratios", ("c",), "c").read(run) is None
    assert Cell("Other", ("a",), "c").read(run) is None
    assert Over(Key("one"), Key("two")).read(run) == Measured(0.5)
    assert Minus(Key("two"), Key("one")).read(run) == Measured(1.0)
    assert Either(Key("none"), Key("one", low="low")).read(run) == Measured(1.0, 0.5)
    assert Over(Key("one"), Key("none")).read(run) is None
    assert measured("MQ") is None


def test_range_in_a_table_is_read_as_its_pairs() -> None:
    assert measured("0.949 (range: 0.938 to 0.962, 3 pairs)") == Measured(0.949, 0.938, 0.962, 3)


def test_command_and_commit_come_from_the_run() -> None:
    assert command_of(run_of() | {"command": "plumage bench gsp"}) == "plumage bench gsp"
    plain = without(run_of(), "commit", "date")
    assert commit_of(plain) == "unknown commit, unknown date"
    assert commit_of(plain | {"kept": "2026-11-21"}) == "unknown commit, kept 2026-11-21"


def test_each_claim_has_a_command_and_each_run_a_day() -> None:
    runs = load_runs(EVIDENCE)
    for _, claims in SECTIONS:
        for claim in claims:
            assert not claim.file or claim.command or claim.file in runs, f"{claim.text}: no command"
    assert all("date" in run or "kept" in run for run in runs.values())
    assert all(command for command, _ in NOT_KEPT)


Make = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_evidence", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make(script: ModuleType, docs: Path, capsys: pytest.CaptureFixture[str]) -> Make:
    """Calls the script's main in this process: an interpreter takes a second of CPU to import the claims."""

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        status = script.main([*more, "--docs", str(docs)])
        return subprocess.CompletedProcess(more, status, *capsys.readouterr())

    return call


def change(docs: Path, **more: Any) -> None:
    """Another figure in a kept run. more: of the record."""
    path = docs / "evidence" / "cht.json"
    run = json.loads(path.read_text()) | more
    run["keys"]["total_s"] = 0.7
    path.write_text(json.dumps(run))


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    shutil.copytree(EVIDENCE, tmp_path / "evidence", ignore=shutil.ignore_patterns("*.png"))
    shutil.copy(ROOT / "docs" / "evidence.md", tmp_path)
    return tmp_path


def test_page_in_the_tree_is_current(docs: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--check", "--docs", str(docs)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_run_that_contradicts_the_page_fails_the_check(docs: Path, make: Make) -> None:
    change(docs, seconds=1.5)
    done = make("--check")
    assert done.returncode == 1
    assert "make evidence" in done.stderr
    assert make().returncode == 0, "a new run may replace the old one"
    assert make("--check").returncode == 0
    assert "| 0.7 |" in (docs / "evidence.md").read_text()


def test_edited_figure_fails_the_check_and_is_not_made_a_page(docs: Path, make: Make) -> None:
    change(docs)
    for done in (make("--check"), make(), make("--check")):
        assert done.returncode == 1
        assert "cht changed since the run" in done.stderr
    assert "| 0.7 |" not in (docs / "evidence.md").read_text()


def test_lost_digest_fails_the_check(docs: Path, make: Make) -> None:
    index = docs / "evidence" / "digests.txt"
    index.write_text("".join(line for line in index.read_text().splitlines(True) if " cht " not in line))
    assert make("--check").returncode == 1


def test_edited_verdict_fails_the_check(docs: Path, make: Make) -> None:
    text = (docs / "evidence.md").read_text()
    assert "**refuted**" in text
    (docs / "evidence.md").write_text(text.replace("**refuted**", "reproduced", 1))
    assert make("--check").returncode == 1


def test_lint_checks_the_page() -> None:
    assert "scripts/make_evidence.py --check" in (ROOT / "scripts" / "lint.sh").read_text()
