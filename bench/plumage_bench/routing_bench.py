"""What the four routing benchmarks share: one default setting with everyone in it, the search for the highest rate on
every fleet size and device, and the closing figures.

- `p50_ttft_gain`: median TTFT of cache-aware + LRU ÷ ours, in the default setting.
- `rate_gain`: highest rate with P95 TTFT under 2 s, ours ÷ cache-aware + LRU: the *least* over sizes and devices.
- `rank`: ours ÷ the best other contender by that rate, again the least; above 1 is first.

Rates are searched seed by seed on the same prompts and arrivals, and their ratios averaged (geometrically), first
roughly, then exactly for those who may be first. A larger fleet gets a larger workload, so that the load on a worker
stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from plumage.errors import ConfigurationError
from plumage_bench.contenders import BASELINES, CACHE_AWARE, DECAYS, MATRIX, OURS, QUICK_RIVALS, Contender
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.parallel import in_parallel
from plumage_bench.rate_search import highest_rate, refined
from plumage_bench.routing_report import (
    Cell,
    Rates,
    decay_table,
    matrix_table,
    plot_rates,
    rate_table,
    setting_table,
    sweep_table,
)
from plumage_bench.scenario import DEVICES, Figures, Scenario, Shape, measure, pooled

__all__ = ["RoutingWorkload", "run_routing"]

_ROUGH = 1.12  # high ÷ low of the first round's brackets
_NEAR = 1.25  # who is this near to the best rival after it is searched exactly
_TOLERANCE, _TOLERANCE_QUICK = 1.015, 1.05

Search = tuple[Cell, Contender, int]  # and a seed


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
    """Roughly for everyone; then exactly for ours, the paper's baseline, and whoever came near the best."""
    contenders = _unique((OURS, *(QUICK_RIVALS if context.quick else (*MATRIX, *BASELINES))))
    cells = _cells(context)
    searches = [(cell, contender, seed) for cell in cells for contender in contenders for seed in seeds]
    rough = _search(workload, context, "rough rates", searches, {})
    leading = {cell: _leading(rough, cell, contenders, seeds) for cell in cells}
    found = rough | _search(
        workload, context, "highest rates", [search for search in searches if search[1] in leading[search[0]]], rough
    )
    by_cell = {cell: {one: [found[cell, one, seed] for seed in seeds] for one in contenders} for cell in cells}
    return Rates(by_cell, OURS)


def _cells(context: Context) -> list[Cell]:
    """Those asked for by `workers=` and `devices=`; else all, or in a quick run the first."""
    workers = _chosen(context, "workers", ("4",) if context.quick else ("4", "16"), ("4", "16"))
    devices = _chosen(context, "devices", ("stated",) if context.quick else DEVICES, DEVICES)
    return [(int(count), device) for count in workers for device in devices]


def _chosen(context: Context, option: str, default: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    given = context.options.get(option)
    if given is None:
        return default
    chosen = given.split(",")
    if not set(chosen) <= set(known):
        raise ConfigurationError(f"{option}={given}: each must be one of {', '.join(known)}")
    return chosen


def _search(
    workload: RoutingWorkload, context: Context, title: str, searches: Sequence[Search], rough: Mapping[Search, float]
) -> dict[Search, float]:
    """The rate of each search; between the rough one and the next where that is known."""
    tolerance = _TOLERANCE_QUICK if context.quick else _TOLERANCE
    calls = [
        (
            contender,
            workload.scenario(*cell, workload.sustained_rate),
            seed,
            tolerance,
            rough.get((cell, contender, seed)),
        )
        for cell, contender, seed in searches
    ]
    with context.progress(f"{workload.name}: {title}", len(calls)) as advance:
        return dict(zip(searches, in_parallel(_rate, calls, advance), strict=True))


def _rate(contender: Contender, scenario: Scenario, seed: int, tolerance: float, rough: float | None) -> float:
    if rough is None:
        return highest_rate(contender, scenario, seed, _ROUGH)
    return refined(contender, scenario, seed, rough, rough * _ROUGH, tolerance)


def _leading(
    rough: Mapping[Search, float], cell: Cell, contenders: Sequence[Contender], seeds: Sequence[int]
) -> list[Contender]:
    means = {one: geometric_mean([rough[cell, one, seed] for seed in seeds]) for one in contenders}
    best = max(mean for one, mean in means.items() if one.policy != OURS.policy)
    return [one for one, mean in means.items() if one in (OURS, CACHE_AWARE) or mean * _NEAR > best]


def _sweeps(workload: RoutingWorkload, context: Context, seeds: Sequence[int]) -> list[ResultTable]:
    contenders = (CACHE_AWARE, OURS)
    tables = []
    for parameter, scenarios in workload.sweeps.items():
        rows = [
            (label, _measure_all(context, f"{workload.name}: {parameter} {label}", contenders, scenario, seeds))
            for label, scenario in scenarios
        ]
        tables.append(sweep_table(parameter, rows))
    scenario = workload.scenario(4, "stated", workload.default_rate)
    decays = _measure_all(context, f"{workload.name}: decay interval", (OURS, *DECAYS), scenario, seeds)
    return [*tables, decay_table(decays)]


def _unique(contenders: Sequence[Contender]) -> list[Contender]:
    seen: dict[str, Contender] = {}
    for contender in contenders:
        seen.setdefault(contender.label, contender)
    return list(seen.values())
