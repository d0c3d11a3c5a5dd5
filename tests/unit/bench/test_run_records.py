"""What the harness makes of a run's options, what it records, and its progress lines."""

from __future__ import annotations

import hashlib
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from plumage.errors import ConfigurationError
from plumage_bench.harness import Context, Report, interval_keys, least_keys
from plumage_bench.pairs import PairedRatio
from plumage_bench.registry import describe
from plumage_bench.runner import run_benchmark


def context(out: Path, output: StringIO, **options: str) -> Context:
    return Context("trace", False, 1, out, Console(file=output, width=100), options)


def test_file_option_is_recorded_by_name_and_checksum_only(tmp_path: Path) -> None:
    kept = tmp_path / "somewhere" / "trace.jsonl"
    kept.parent.mkdir()
    kept.write_text("{}\n")
    run_benchmark(
        describe("trace"),
        lambda given: Report({"figure": len(Path(given.options["trace"]).read_text())}),
        context(tmp_path, StringIO(), trace=str(kept), sweep="1"),
    )
    written = (tmp_path / "trace.json").read_text()
    assert "somewhere" not in written
    options = json.loads(written)["options"]
    checksum = hashlib.sha256(kept.read_bytes()).hexdigest()
    assert options == {"trace": f"trace.jsonl (sha256 {checksum})", "sweep": "1"}


def test_run_is_recorded_with_command_commit_and_date(tmp_path: Path) -> None:
    kept = tmp_path / "a trace.jsonl"
    kept.write_text("{}\n")
    given = Context("trace", True, 5, tmp_path, Console(file=StringIO(), width=100), {"trace": str(kept)})
    run_benchmark(describe("trace"), lambda _: Report({"figure": 1}), given)
    record = json.loads((tmp_path / "trace.json").read_text())
    assert record["command"] == "plumage bench trace --quick --seed 5 'trace=a trace.jsonl'"
    assert re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", record["date"])
    assert {"commit", "seed", "versions", "machine"} <= set(record)


def test_paired_figure_has_keys_for_its_ends_and_pairs() -> None:
    ratio = PairedRatio(1.5, 1.25, 1.75, 6)
    assert interval_keys("gain", ratio) == {"gain": 1.5, "gain_low": 1.25, "gain_high": 1.75, "gain_pairs": 6}
    other = PairedRatio(1.4, 1.3, 1.5, 4)
    assert least_keys("gain", [ratio, other]) == interval_keys("gain", other)


def test_option_selects_from_a_list(tmp_path: Path) -> None:
    of = ("even", "even, beside", "zipf")
    assert context(tmp_path, StringIO()).some("kinds", of) == of
    assert context(tmp_path, StringIO()).some("kinds", of, ("zipf",)) == ("zipf",)
    assert context(tmp_path, StringIO(), kinds="even").some("kinds", of, ("zipf",)) == ("even",)
    assert context(tmp_path, StringIO(), kinds="zipf;even").some("kinds", of) == ("even", "zipf")
    with pytest.raises(ConfigurationError, match="kinds: there is no 'evn'; there are: even; even, beside; zipf"):
        context(tmp_path, StringIO(), kinds="evn;zipf").some("kinds", of)


def test_long_run_reports_progress_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("plumage_bench.harness.time.perf_counter", lambda: float(next(clock)))
    output = StringIO()
    with context(tmp_path, output).progress("fleet", 20) as advance:
        for _ in range(20):
            advance(1)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("fleet:")]
    assert lines[0] == "fleet: 2 of 20 after 40 s"
    assert len(lines) == 10


def test_commit_is_recorded_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        return {"rev-parse": "0123456789", "status": " M file"}[words[0]]

    monkeypatch.setattr("plumage_bench.commit._git", git)
    run_benchmark(describe("trace"), lambda given: Report({}), context(tmp_path, StringIO()))
    assert json.loads((tmp_path / "trace.json").read_text())["commit"] == "0123456789+"
    monkeypatch.setattr("plumage_bench.commit._git", lambda *words: "")
    run_benchmark(describe("trace"), lambda given: Report({}), context(tmp_path, StringIO()))
    assert json.loads((tmp_path / "trace.json").read_text())["commit"] == ""


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many", "101", "٣", ""])
def test_invalid_count_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigurationError, match=f"pairs={re.escape(given)}: must be from 1 to 100"):
        context(tmp_path, StringIO(), pairs=given).count("pairs", 3)
    assert context(tmp_path, StringIO()).count("pairs", 3) == 3
