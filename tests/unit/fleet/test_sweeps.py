"""Every setting that `--sweep` runs can be made and served, and results in tables."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plumage_bench.benches import fewshot, gsp, longdoc, multiturn
from plumage_bench.harness import Context
from plumage_bench.routing import bench as routing_bench
from plumage_bench.routing import runs as routing_runs
from plumage_bench.routing import scenario
from plumage_bench.routing.bench import RoutingWorkload
from plumage_bench.routing.contenders import CACHE_AWARE, DECAYS, OURS
from plumage_bench.routing.scenario import Scenario
from plumage_bench.virtual_time.fleet import run_fleet
from plumage_bench.workloads import Arrival, GspShape, Source

SWEEPS = {module.__name__.rpartition(".")[2]: module._sweeps() for module in (gsp, longdoc, fewshot, multiturn)}
SETTINGS = [
    (name, parameter, label, one)
    for name, sweeps in SWEEPS.items()
    for parameter, scenarios in sweeps.items()
    for label, one in scenarios
]
FEW = 8


class Few:
    """The first requests of a workload."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def initial(self) -> Iterator[Arrival]:
        return islice(self._source.initial(), FEW)

    def after(self, client: int, now: float) -> None:
        return None

    def __len__(self) -> int:
        return FEW


@pytest.fixture(autouse=True, scope="module")
def _prompts_made_once() -> Iterator[None]:
    """Most settings differ in something else."""
    names = ("gsp_prompts", "longdoc_prompts", "fewshot_prompts", "conversations", "article_prompts", "agent_sessions")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(scenario, name, cache(getattr(scenario, name)))
        yield


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one[0]}, {one[1]}: {one[2]}")
def test_setting_is_served(setting: tuple[str, str, str, Scenario]) -> None:
    *_, one = setting
    engines = one.engines(OURS.eviction)
    assert len(engines) == one.workers
    run = run_fleet(engines, OURS.make(1, one.shape.block_size), Few(one.source(1)), seed=1)
    assert len(run.served) == FEW
    assert not any(isnan(served.finished) for served in run.served)


def test_settings_of_one_parameter_differ() -> None:
    for name, sweeps in SWEEPS.items():
        for parameter, scenarios in sweeps.items():
            assert len({label for label, _ in scenarios}) == len({one for _, one in scenarios}) == len(scenarios), (
                name, parameter,
            )  # fmt: skip


def test_cache_sizes_of_the_paper_are_swept_below_its_default() -> None:
    caches = [one.cache_tokens for _, one in SWEEPS["gsp"]["cache, % of 200k tokens"]]
    assert caches == [100_000, 120_000, 140_000, 160_000, 180_000, 200_000]


def test_sweep_gives_a_table_for_each_parameter_and_one_of_decay_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(function: Any, calls: Sequence[tuple[Any, ...]], advance: Any) -> list[Any]:
        return [function(*call) for call in calls]

    monkeypatch.setattr(routing_runs, "in_parallel", here)
    small = Scenario(GspShape(groups=4, queries=2), 12.0)
    sweeps: Mapping[str, Any] = {
        "rate": [("12", small), ("24", small.at(24.0))],
        "workers": [("2", replace(small, workers=2))],
    }
    workload = RoutingWorkload("small", lambda factor: GspShape(groups=4 * factor, queries=2), 12.0, 8.0, sweeps)
    context = Context("small", True, 1, tmp_path, Console(file=io.StringIO()))
    rate, workers, decay = routing_bench._sweeps(workload, routing_runs.Runs(context), [1, 2])
    assert [row[0] for row in rate.rows] == ["12", "24"]
    assert [row[0] for row in workers.rows] == ["2"]
    assert all(len(row) == len(table.columns) for table in (rate, workers, decay) for row in table.rows)
    assert rate.rows[0][3] == pytest.approx(
        routing_bench.pooled([routing_bench.measure(CACHE_AWARE, small, seed) for seed in (1, 2)]).ttft_at(0.5)
    )
    assert len(decay.rows) >= len(DECAYS)
