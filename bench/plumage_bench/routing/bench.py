"""The common part of the four routing benchmarks: a default setting with all contenders, the search for the highest
rate on every fleet size and device, and the closing figures.
- `rank_equal`: highest rate with P95 TTFT under 2 s, ours ÷ the best other contender with the *same eviction*. It is
  the smallest ratio over evictions (leaf-LRU and the product's), sizes and devices, and compares routing alone. It
  comes with its bounds, `aa` (ours ÷ ours on other seeds) and `rank_verdict`. The target is judged by the ratio, never
  by the verdict.
- `products_rank`: the same rate, ours with our eviction ÷ the best other with leaf-LRU: routing and eviction together.
- `rate_gain`, `p50_ttft_gain`: against cache-aware + LRU, the paper's baseline; the second in the default setting.
- `setting_…_over_best`: the default setting, ours ÷ the best other with the same eviction.
- `unreached`: fleets in which nobody keeps the limit at any rate. All figures of rates leave them out.

In the first round rates are searched roughly, seed by seed on the same prompts and arrivals. It shows which contenders
may be the fastest. Their rates are then measured on other seeds, many at once (`crossing`), since the best of many
noisy rates is also the luckiest. A quick run has only the first round, and takes its ratios seed by seed. A larger
fleet gets a proportionally larger workload, so that the load on a worker stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from plumage.errors import ConfigurationError
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.pairs import LEAST_PAIRS
from plumage_bench.routing.contenders import (
    AGAIN,
    BASELINES,
    CACHE_AWARE,
    DECAYS,
    EVICTIONS,
    MATRIX,
    OURS,
    QUICK_BASELINES,
    Contender,
    equal,
)  # fmt: skip
from plumage_bench.routing.crossing import Curve, climb
from plumage_bench.routing.rate_search import highest_rate, late_share
from plumage_bench.routing.report import (
    Cell,
    Rates,
    decay_table,
    equal_keys,
    equal_table,
    finals_table,
    matrix_table,
    plot_rates,
    rate_keys,
    rate_table,
    setting_keys,
    setting_table,
    sweep_table,
)
from plumage_bench.routing.runs import Runs
from plumage_bench.routing.scenario import DEVICES, Figures, Scenario, Shape, measure, pooled

__all__ = ["RoutingWorkload", "run_routing"]

_TOLERANCE, _TOLERANCE_QUICK = 1.12, 1.05  # high ÷ low of the first round's brackets
_STRIDE = 1.12
_ABOVE = 1.15  # the first round's searches begin this much above our rate on one seed
_LARGE, _OUTSIDE = 4, 0.7  # in larger fleets the search stops below this share of our rate, since it would take hours
_NEAR = 1.15  # contenders this near to the best baseline of the first round are measured in the second
_FRESH = 1000  # the second round's seeds begin this much above the first's
_REQUESTS = 16_000  # requests that the second round serves at each rate, over all its seeds
_LEAST_SEEDS, _MOST_SEEDS = LEAST_PAIRS, 24
_SETTING_SEEDS, _SETTING_SEEDS_QUICK = 3, 2

Search = tuple[Cell, Contender, int]  # requests for each seed


@dataclass(frozen=True)
class RoutingWorkload:
    """scaled: the shape for a fleet `k` times as large. default_rate: of the default setting, for 4 workers.
    sustained_rate: where the search for the highest rate begins. sweeps: labelled scenarios by parameter."""

    name: str
    scaled: Callable[[int], Shape]
    default_rate: float
    sustained_rate: float
    sweeps: Mapping[str, Sequence[tuple[str, Scenario]]]

    def scenario(self, workers: int, device: str, rate: float) -> Scenario:
        factor = workers // 4
        return Scenario(self.scaled(factor), rate * factor, workers, device)


def run_routing(workload: RoutingWorkload, context: Context) -> Report:
    cells, sweep = _cells(context), context.switch("sweep")  # checked first, so that an invalid option fails at once
    seeds = [context.seed + offset for offset in range(context.count("pairs", LEAST_PAIRS))]
    setting_seeds = seeds[: _SETTING_SEEDS_QUICK if context.quick else _SETTING_SEEDS]
    runs = Runs(context)
    figures = _default_setting(workload, context, runs, setting_seeds)
    rates = _rates(workload, context, runs, cells, seeds)
    tables = [setting_table(workload.name, workload.default_rate, figures), matrix_table(figures)]
    tables += [equal_table(rates), rate_table(rates), *([finals_table(rates)] if rates.finals else [])]
    if sweep:
        tables += _sweeps(workload, runs, setting_seeds)
    keys: dict[str, int | float | str] = {
        **equal_keys(rates),
        **rate_keys(rates),
        "p50_ttft_gain": figures[CACHE_AWARE].ttft_at(0.5) / figures[OURS].ttft_at(0.5),
        **setting_keys(figures),
    }
    return Report(
        keys,
        tables,
        lambda figure: plot_rates(figure, workload.name, rates),
        {"seeds": seeds, "rates": rates.plain(), "late on fresh seeds": rates.plain_finals()},
    )


def _default_setting(
    workload: RoutingWorkload, context: Context, runs: Runs, seeds: Sequence[int]
) -> dict[Contender, Figures]:
    contenders = _unique((*MATRIX, *equal((OURS, *(QUICK_BASELINES if context.quick else BASELINES)))))
    scenario = workload.scenario(4, "stated", workload.default_rate)
    return _measure_all(runs, f"{workload.name}: default setting", contenders, scenario, seeds)


def _measure_all(
    runs: Runs, title: str, contenders: Sequence[Contender], scenario: Scenario, seeds: Sequence[int]
) -> dict[Contender, Figures]:
    found = runs.all(title, measure, [(contender, scenario, seed) for contender in contenders for seed in seeds])
    by_contender = [found[start : start + len(seeds)] for start in range(0, len(found), len(seeds))]
    return {contender: pooled(own) for contender, own in zip(contenders, by_contender, strict=True)}


def _rates(
    workload: RoutingWorkload, context: Context, runs: Runs, cells: Sequence[Cell], seeds: Sequence[int]
) -> Rates:
    """Rough rates of all contenders. Then, on other seeds, the rates of ours, of the paper's baseline, and of those
    near the best with either eviction."""
    baselines = QUICK_BASELINES if context.quick else BASELINES
    contenders = _unique((AGAIN, CACHE_AWARE, *equal((OURS, *baselines)), *(() if context.quick else MATRIX)))
    of = {cell: _searched(context, cell, seeds) for cell in cells}
    searches = [(cell, contender, seed) for cell in cells for contender in contenders for seed in of[cell]]
    starts = _starts(workload, context, runs, cells)
    found = _search(workload, context, runs, searches, starts)
    by_cell = {cell: {one: [found[cell, one, seed] for seed in of[cell]] for one in contenders} for cell in cells}
    rough = Rates(by_cell, OURS, floors={cell: _floor(cell, start) for cell, start in starts.items()})
    return rough if context.quick else replace(rough, finals=_finals(workload, context, runs, rough))


def _cells(context: Context) -> list[Cell]:
    """The cells that `workers=` and `devices=` name. Without these options all cells, or in a quick run the first."""
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
    workload: RoutingWorkload,
    context: Context,
    runs: Runs,
    searches: Sequence[Search],
    starts: Mapping[Cell, Scenario],
) -> dict[Search, float]:
    """The rate of each search, each with one seed. All searches of a cell begin at the same rate."""
    tolerance = _TOLERANCE_QUICK if context.quick else _TOLERANCE
    floors = {cell: _floor(cell, start) for cell, start in starts.items()}
    calls = [(who, starts[cell], seed, tolerance, _STRIDE, floors[cell]) for cell, who, seed in searches]
    return dict(zip(searches, runs.numbers(f"{workload.name}: highest rates", highest_rate, calls), strict=True))


def _starts(workload: RoutingWorkload, context: Context, runs: Runs, cells: Sequence[Cell]) -> dict[Cell, Scenario]:
    scenarios = [workload.scenario(*cell, workload.sustained_rate) for cell in cells]
    calls = [(OURS, scenario, context.seed, _STRIDE) for scenario in scenarios]
    rates = runs.numbers(f"{workload.name}: where to begin", highest_rate, calls)
    return {cell: one.at(rate * _ABOVE) for cell, one, rate in zip(cells, scenarios, rates, strict=True)}


def _searched(context: Context, cell: Cell, seeds: Sequence[int]) -> Sequence[int]:
    """The first round's seeds. In a large fleet one seed has as many requests as four in a small one."""
    return seeds[:1] if cell[0] > _LARGE and not context.quick else seeds


def _floor(cell: Cell, start: Scenario) -> float:
    """The rate, in requests a second, below which a baseline is not searched; 0 in small fleets."""
    return start.rate / _ABOVE * _OUTSIDE if cell[0] > _LARGE else 0.0


def _finals(
    workload: RoutingWorkload, context: Context, runs: Runs, rough: Rates
) -> dict[Cell, dict[Contender, Curve]]:
    """The second round: late shares on other seeds, at rates about the result of the first."""
    entries = [(cell, contender) for cell in rough.cells for contender in _leading(rough, cell)]
    starts = [rough.mean(cell, contender) for cell, contender in entries]

    def shares(wanted: Sequence[tuple[int, float]]) -> list[list[float]]:
        found = [(*entries[index], rate) for index, rate in wanted]
        return _late_shares(context, runs, [(one, workload.scenario(*cell, 1.0).at(rate)) for cell, one, rate in found])

    finals: dict[Cell, dict[Contender, Curve]] = {cell: {} for cell in rough.cells}
    for (cell, contender), curve in zip(entries, climb(starts, shares), strict=True):
        finals[cell][contender] = curve
    return finals


def _late_shares(context: Context, runs: Runs, entries: Sequence[tuple[Contender, Scenario]]) -> list[list[float]]:
    """The late shares of each entry, seed by seed."""
    seeds = [_fresh_seeds(context, scenario) for _, scenario in entries]
    calls = [(*entry, seed) for entry, own in zip(entries, seeds, strict=True) for seed in own]
    found = iter(runs.numbers(f"{context.name}: those near the best, on fresh seeds", late_share, calls))
    return [[next(found) for _ in own] for own in seeds]


def _leading(rough: Rates, cell: Cell) -> list[Contender]:
    near: list[Contender] = []
    for eviction in EVICTIONS:
        rates = {one: rough.mean(cell, one) for one in rough.baselines if one.eviction == eviction}
        near += [one for one, rate in rates.items() if rate * _NEAR > max(rates.values())]
    return _unique((*equal([OURS]), AGAIN, CACHE_AWARE, *near))


def _fresh_seeds(context: Context, scenario: Scenario) -> range:
    count = -(-_REQUESTS // _size(scenario.shape))
    first = context.seed + _FRESH
    return range(first, first + min(max(count, _LEAST_SEEDS), _MOST_SEEDS))


@cache
def _size(shape: Shape) -> int:
    """How many requests a run of that shape has, at any rate and seed."""
    return len(Scenario(shape, 1.0).source(0))


def _sweeps(workload: RoutingWorkload, runs: Runs, seeds: Sequence[int]) -> list[ResultTable]:
    contenders = (CACHE_AWARE, OURS)
    tables = []
    for parameter, scenarios in workload.sweeps.items():
        rows = [
            (label, _measure_all(runs, f"{workload.name}: {parameter} {label}", contenders, scenario, seeds))
            for label, scenario in scenarios
        ]
        tables.append(sweep_table(parameter, rows))
    scenario = workload.scenario(4, "stated", workload.default_rate)
    decays = _measure_all(runs, f"{workload.name}: decay interval", (OURS, *DECAYS), scenario, seeds)
    return [*tables, decay_table(decays)]


def _unique(contenders: Sequence[Contender]) -> list[Contender]:
    seen: dict[str, Contender] = {}
    for contender in contenders:
        seen.setdefault(contender.label, contender)
    return list(seen.values())
