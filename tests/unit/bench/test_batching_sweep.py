"""FEATHER's ranges: every load is what its label says, and is served."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plumage.errors import ConfigurationError
from plumage_bench.benches import batching
from plumage_bench.benches.batching import sweep as batching_sweep
from plumage_bench.benches.batching.engine import CACHE_BLOCKS, LOADS, Contender, Load, Played, play, requests
from plumage_bench.benches.batching.sweep import COMPARED, sweep_tables, sweeps
from plumage_bench.harness import Context

SETTINGS = [(f"{parameter}: {label}", load) for parameter, loads in sweeps().items() for label, load in loads]


@pytest.mark.parametrize("load", [load for _, load in SETTINGS], ids=[name for name, _ in SETTINGS])
def test_setting_is_served(load: Load) -> None:
    few = replace(load, count=12, output=min(load.output, 20))
    played = play(few, COMPARED[-1], 1)
    assert played.throughput > 0
    assert (played.between > 0) == (few.output > 1)
    assert 1 <= played.batch <= 12


def test_single_request_has_the_computed_figures() -> None:
    alone = replace(LOADS[0], count=1, output=50)
    played = play(alone, Contender("FCFS", "Fcfs"), 1)
    assert played.batch == pytest.approx(1.0)
    arrival = requests(alone, 1)[0].arrival
    took = 50 / played.throughput - arrival
    assert 49 * played.between < took, "the rest is prefill"
    assert 49 * played.between == pytest.approx(took, rel=0.6)


def test_rate_steps_follow_one_another() -> None:
    load = replace(LOADS[0], count=3_000, steps=(5.0, 10.0, 20.0))
    times = [request.arrival for request in requests(load, 1)]
    for part, rate in enumerate(load.steps):
        own = times[part * 1000 : (part + 1) * 1000]
        assert (own[-1] - own[0]) / 999 == pytest.approx(1 / rate, rel=0.1)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_groups_share_all_levels_above_their_branching(levels: int) -> None:
    load = replace(LOADS[0], groups=8, levels=levels)
    prefixes = [load.prefix_blocks(group) for group in range(8)]
    assert len({tuple(prefix) for prefix in prefixes}) == 8
    distinct = [len({prefix[level * len(prefix) // levels] for prefix in prefixes}) for level in range(levels)]
    assert distinct == [8 >> (levels - 1 - level) for level in range(levels)]
    assert all(before < after for before, after in pairwise(distinct))


def test_load_of_one_level_is_unchanged() -> None:
    assert replace(LOADS[0], prefix=48).prefix_blocks(3) == [(4 << 20), (4 << 20) + 1, (4 << 20) + 2]


def test_tight_cache_holds_a_fifth_of_the_prefixes_beside_a_batch() -> None:
    for _, load in sweeps()["groups, a fifth of whose prefixes fit"]:
        prefixes = load.groups * load.prefix // 16
        assert prefixes / 5 < load.cache_blocks < CACHE_BLOCKS
        assert load.cache_blocks < prefixes / 5 + load.batch * 21


@pytest.mark.parametrize("value", ["yes", "true", "", "2"])
def test_sweep_takes_0_or_1_only(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []

    def watched(function: Any, calls: Sequence[tuple[Any, ...]], advance: Any) -> list[Any]:
        measured.extend(calls)
        return [1.0 if function is batching.throughput else Played(1.0, 1.0, 1.0) for _ in calls]

    def run(**options: str) -> int:
        """The number of tables."""
        context = Context("batching", True, 1, tmp_path, Console(file=io.StringIO()), options)
        return len(batching.run(context).tables)

    monkeypatch.setattr(batching, "in_parallel", watched)
    monkeypatch.setattr(batching_sweep, "in_parallel", watched)
    with pytest.raises(ConfigurationError, match=f"sweep={value}: must be 0 or 1"):
        run(sweep=value)
    assert measured == []
    assert run() == run(sweep="0") < run(sweep="1")


def test_tables_have_a_row_for_each_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(function: Any, calls: Sequence[tuple[Any, ...]], advance: Any) -> list[Any]:
        return [function(*call) for call in calls]

    small = replace(LOADS[0], count=5, output=5)
    monkeypatch.setattr(batching_sweep, "in_parallel", here)
    monkeypatch.setattr(
        batching_sweep, "sweeps", lambda: {"a": [("x", small), ("y", replace(small, groups=1))], "b": [("z", small)]}
    )
    first, second = sweep_tables(Context("batching", True, 1, tmp_path, Console(file=io.StringIO())), [1, 2])
    assert [row[0] for row in first.rows] == ["x", "y"]
    assert [row[0] for row in second.rows] == ["z"]
    assert first.rows[0][1:] == second.rows[0][1:]
    assert all(len(row) == len(first.columns) == 10 for row in (*first.rows, *second.rows))
