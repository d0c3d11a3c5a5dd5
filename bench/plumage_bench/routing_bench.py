"""What the four routing benchmarks share: one default setting with everyone in it, the search for the highest rate on
every fleet size and device, and the closing figures.

- `p50_ttft_gain`: median TTFT of cache-aware + LRU ÷ ours, in the default setting.
- `rate_gain`: highest rate with P95 TTFT under 2 s, ours ÷ cache-aware + LRU: the *least* over sizes and devices.
- `rank`: ours ÷ the best other contender by that rate, again the least; above 1 is first.

Rates are searched seed by seed on the same prompts and arrivals, and their ratios averaged (geometrically). A larger
fleet gets a larger workload, so that the load on a worker stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plumage_bench.contenders import BASELINES, CACHE_AWARE, MATRIX, OURS, QUICK_RIVALS, Contender
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.parallel import in_parallel
from plumage_bench.rate_search import highest_rate
from plumage_bench.routing_report import Rates, matrix_table, plot_rates, rate_table, setting_table, sweep_table
from plumage_bench.scenario import DEVICES, Figures, Scenario, Shape, measure, pooled

__all__ = ["RoutingWorkload", "run_routing"]


@dataclass(frozen=True)
class RoutingWorkload:
    """scaled: the shape for a fleet `k` times as large. default_rate: of the default setting, for 4 workers.
    sustained_rate: where the search for the highest rate begins. sweeps: by parameter, labelled scenarios."""

    name: str
    scaled: Callable[[int], Shape]
    default_rate: float
    sustained_rate: float
    sweeps: Mapping[str, Sequence[tuple[str, Scenario]]]

    def scenario(self, workers: int, device: str, rate: float) -> Scenario:
        factor = workers // 4
        return Scenario(self.scaled(factor), rate * factor, workers, device)


def run_routing(workload: RoutingWorkload, context: Context) -> Report:
    seeds = [context.seed + offset for offset in range(2 if context.quick else 3)]
    figures = _default_setting(workload, context, seeds)
    rates = _rates(workload, context, seeds)
    tables = [setting_table(workload.name, workload.default_rate, figures), matrix_table(figures)]
    tables += [rate_table(rates)]
    if context.options.get("sweep") == "1":
        tables += _sweeps(workload, context, seeds)
    keys = {
        "p50_ttft_gain": figures[CACHE_AWARE].ttft_at(0.5) / figures[OURS].ttft_at(0.5),
        "rate_gain": min(rates.over(cell, [CACHE_AWARE]) for cell in rates.cells),
        "rank": min(rates.over(cell, rates.rivals) for cell in rates.cells),
    }
    return Report(
        keys, tables, lambda figure: plot_rates(figure, workload.name, rates), {"seeds": seeds, "rates": rates.plain()}
    )


def _default_setting(workload: RoutingWorkload, context: Context, seeds: Sequence[int]) -> dict[Contender, Figures]:
    contenders = _unique((OURS, *MATRIX, *BASELINES))
    scenario = workload.scenario(4, "stated", workload.default_rate)
    return _measure_all(context, f"{workload.name}: default setting", contenders, scenario, seeds)


def _measure_all(
    context: Context, title: str, contenders: Sequence[Contender], scenario: Scenario, seeds: Sequence[int]
) -> dict[Contender, Figures]:
    calls = [(contender, scenario, seed) for contender in contenders for seed in seeds]
    with context.progress(title, len(calls)) as advance:
        runs = in_parallel(measure, calls, advance)
    by_contender = [runs[start : start + len(seeds)] for start in range(0, len(runs), len(seeds))]
    return {contender: pooled(own) for contender, own in zip(contenders, by_contender, strict=True)}


def _rates(workload: RoutingWorkload, context: Context, seeds: Sequence[int]) -> Rates:
    contenders = _unique((OURS, *(QUICK_RIVALS if context.quick else (*MATRIX, *BASELINES))))
    cells = [(4, "stated")] if context.quick else [(workers, device) for workers in (4, 16) for device in DEVICES]
    tolerance = 1.05 if context.quick else 1.015
    calls = [
        (contender, workload.scenario(workers, device, workload.sustained_rate), seed, tolerance)
        for workers, device in cells
        for contender in contenders
        for seed in seeds
    ]
    with context.progress(f"{workload.name}: highest rates", len(calls)) as advance:
        found = iter(in_parallel(highest_rate, calls, advance))
    return Rates(
        {cell: {contender: [next(found) for _ in seeds] for contender in contenders} for cell in cells},
        OURS,
    )


def _sweeps(workload: RoutingWorkload, context: Context, seeds: Sequence[int]) -> list[ResultTable]:
    contenders = (CACHE_AWARE, OURS)
    tables = []
    for parameter, scenarios in workload.sweeps.items():
        rows = [
            (label, _measure_all(context, f"{workload.name}: {parameter} {label}", contenders, scenario, seeds))
            for label, scenario in scenarios
        ]
        tables.append(sweep_table(parameter, rows))
    return tables


def _unique(contenders: Sequence[Contender]) -> list[Contender]:
    seen: dict[str, Contender] = {}
    for contender in contenders:
        seen.setdefault(contender.label, contender)
    return list(seen.values())
