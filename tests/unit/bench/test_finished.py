"""An interrupted benchmark continues: finished parts of the same run are used unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.benches.vllm_feather.report import Played
from plumage_bench.benches.vllm_feather.saved_cells import cell_from, plain_cell
from plumage_bench.finished import Finished

MADE_BY: dict[str, Any] = {"seed": 1, "pairs": 3, "policies": ["FCFS", "bandit"]}
NAME = "bench.done.json"


def test_finished_part_reads_back_unchanged(tmp_path: Path) -> None:
    Finished(tmp_path / NAME, MADE_BY, resume=False).add("8 × 4k", [0.1, 0.2])
    again = Finished(tmp_path / NAME, MADE_BY, resume=True)
    assert again.get("8 × 4k") == [0.1, 0.2]
    assert again.get("16 × 4k") is None


def test_reused_parts_stay_with_later_ones(tmp_path: Path) -> None:
    for name in ("8 × 4k", "16 × 4k"):
        Finished(tmp_path / NAME, MADE_BY, resume=True).add(name, 1.5)
    last = Finished(tmp_path / NAME, MADE_BY, resume=True)
    assert last.get("8 × 4k") == last.get("16 × 4k") == 1.5


def test_new_run_starts_empty(tmp_path: Path) -> None:
    Finished(tmp_path / NAME, MADE_BY, resume=False).add("8 × 4k", 1.5)
    assert Finished(tmp_path / NAME, MADE_BY, resume=False).get("8 × 4k") is None


def test_parts_of_another_run_are_refused(tmp_path: Path) -> None:
    Finished(tmp_path / NAME, MADE_BY, resume=False).add("8 × 4k", 1.5)
    with pytest.raises(ConfigurationError, match=r"its pairs, seed differ: give that run's, or remove it"):
        Finished(tmp_path / NAME, {**MADE_BY, "seed": 2, "pairs": 4}, resume=True)


def test_line_that_was_being_written_is_dropped(tmp_path: Path) -> None:
    first = Finished(tmp_path / NAME, MADE_BY, resume=False)
    first.add("8 × 4k", 1.5)
    first.add("16 × 4k", 2.5)
    written = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(written[:-5])
    again = Finished(tmp_path / NAME, MADE_BY, resume=True)
    assert (again.get("8 × 4k"), again.get("16 × 4k")) == (1.5, None)
    again.add("16 × 4k", 3.5)
    last = Finished(tmp_path / NAME, MADE_BY, resume=True)
    assert (last.get("8 × 4k"), last.get("16 × 4k")) == (1.5, 3.5)


@pytest.mark.parametrize("text", ["", "[]", '{"seed"', "1\n", '{"seed": 1\n', '{"seed": 1}\n[1]\n', '{"seed": 1}\n{\n'])
def test_torn_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ConfigurationError, match=r"can't be read .* remove it"):
        Finished(tmp_path / NAME, MADE_BY, resume=True)


def test_cell_of_feather_reads_back_unchanged() -> None:
    runs = {
        label: [
            Played(64, 0.5, 0.75, (0.1, 0.2), (0.01, 0.02), batch, 3, converged=1.0, after=2.0)
            for batch in (15.5, 16.0)
        ]
        for label in ("FCFS", "bandit")
    }
    again = cell_from(json.loads(json.dumps(plain_cell(runs))))
    assert again == runs
