"""An interrupted run of `vllm-feather` continues: finished cells of the same run are used unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.benches.vllm_feather.kept import NAME, Kept
from plumage_bench.benches.vllm_feather.report import Played

MADE_BY: dict[str, Any] = {"seed": 1, "pairs": 3, "policies": ["FCFS", "bandit"]}
RUNS = {
    label: [Played(64, 0.5, 0.75, (0.1, 0.2), (0.01, 0.02), batch, 3) for batch in (15.5, 16.0)]
    for label in ("FCFS", "bandit")
}


def test_finished_cell_reads_back_unchanged(tmp_path: Path) -> None:
    Kept(tmp_path / NAME, MADE_BY, resume=False).keep("8 × 4k", RUNS)
    again = Kept(tmp_path / NAME, MADE_BY, resume=True)
    found = again.cell("8 × 4k")
    assert found is not None
    assert [one.rate for one in found["bandit"]] == [one.rate for one in RUNS["bandit"]]
    assert found["FCFS"][0].waits == RUNS["FCFS"][0].waits
    assert again.cell("16 × 4k") is None


def test_reused_cells_stay_with_later_ones(tmp_path: Path) -> None:
    for name in ("8 × 4k", "16 × 4k"):
        Kept(tmp_path / NAME, MADE_BY, resume=True).keep(name, RUNS)
    last = Kept(tmp_path / NAME, MADE_BY, resume=True)
    assert last.cell("8 × 4k")
    assert last.cell("16 × 4k")


def test_new_run_starts_empty(tmp_path: Path) -> None:
    Kept(tmp_path / NAME, MADE_BY, resume=False).keep("8 × 4k", RUNS)
    assert Kept(tmp_path / NAME, MADE_BY, resume=False).cell("8 × 4k") is None


def test_cells_of_another_run_are_refused(tmp_path: Path) -> None:
    Kept(tmp_path / NAME, MADE_BY, resume=False).keep("8 × 4k", RUNS)
    with pytest.raises(ConfigurationError, match=r"its pairs, seed differ: give that run's, or remove it"):
        Kept(tmp_path / NAME, {**MADE_BY, "seed": 2, "pairs": 4}, resume=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made_by": 1, "cells": 2}', '{"cells"'])
def test_torn_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ConfigurationError, match=r"can't be read .* remove it"):
        Kept(tmp_path / NAME, MADE_BY, resume=True)
