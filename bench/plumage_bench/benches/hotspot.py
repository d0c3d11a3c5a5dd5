"""`hotspot`: a prefix that gets 60 % of the requests and cools, under every routing policy in virtual time.

- `p95_over_best`: P95 of the time to first token, ours ÷ that of the best other policy or setting. The best is the one
  with the least mean over the seeds, so it is also the luckiest.
- `replicas_quiet`, `replicas_peak`, `replicas_cool`: to how many replicas ours sends the hot prefix in these phases:
  1 ÷ the sum of the squares of the replicas' shares. It should rise and fall. `holders_…`: how many cache it at the end
  of the phase.
- `system_p95_over_best`: the same as the first for prompts that share nothing but a system prompt of 1,024 tokens.
  `system_busiest`: the share of the busiest replica there × the number of replicas; 1 is even.

All policies run over the default manifest's eviction. Settings of Lbgr that differ from the default count as others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.pairs import LEAST_PAIRS, paired_ratio
from plumage_bench.parallel import in_parallel
from plumage_bench.quantiles import quantile
from plumage_bench.routing.contenders import BASELINES, CACHE_AWARE, OURS, QUICK_BASELINES, Contender
from plumage_bench.routing.scenario import Scenario
from plumage_bench.virtual_time.fleet import Served, Worker, run_fleet
from plumage_bench.workloads import HOT, HotspotShape, hotspot_arrivals
from plumage_engine.simulator.engine.request import StepReport

__all__ = ["CASES", "Figures", "Holders", "contenders", "phases", "run", "spread_over", "sum_up"]

CASES: Final = {
    "hot": HotspotShape(),
    "system": HotspotShape(others=12.0, low=0.0, high=0.0, system_tokens=1024, groups=256, group_tokens=512),
}
SEEDS: Final = 8
STEP: Final = 10.0  # seconds of a point of the plot
SETTINGS: Final[Mapping[str, Mapping[str, float]]] = {
    "Lbgr, crowding 0": {"crowding": 0.0},
    "Lbgr, crowding 4": {"crowding": 4.0},
    "Lbgr, spread 0": {"spread": 0.0},
}
_LEAST_LOAD: Final = ("least load", "Dynamo")  # strong where all caches have the prefix


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. replicas: by phase, to how many the hot prefix went. holders: by phase, how many cached it at its
    end. busiest: see the module. over_time: (seconds, holders of the hot prefix)."""

    p50: float
    p95: float
    hits: float
    replicas: Mapping[str, float]
    holders: Mapping[str, int]
    busiest: float
    over_time: Sequence[tuple[float, int]]


class Holders:
    """Counts every `STEP` seconds which replicas cache the hot prefix. An observer of a fleet."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self.over_time: list[tuple[float, int]] = []
        self._prefix = prefix
        self._holding: set[int] = set()

    def routed(self, number: int, served: Served) -> None:
        """Counts after the steps of engines only."""

    def stepped(self, worker: Worker, report: StepReport, now: float) -> None:
        whole = worker.engine.pool.match(self._prefix) == len(self._prefix)
        (self._holding.add if whole else self._holding.discard)(worker.state.slot)
        if now >= STEP * (len(self.over_time) + 1):
            self.over_time.append((now, len(self._holding)))

    def at(self, when: float) -> int:
        """The last count until then; 0 before the first."""
        return next((count for at, count in reversed(self.over_time) if at <= when), 0)


def contenders(*, quick: bool) -> list[Contender]:
    """Ours, then the others."""
    wanted = {*QUICK_BASELINES, CACHE_AWARE}
    others = [one for one in BASELINES if not quick or one in wanted or one.routing in _LEAST_LOAD]
    settings = [replace(OURS, routing=name, options={**OURS.options, **changed}) for name, changed in SETTINGS.items()]
    return [OURS, *(one.over(OURS.eviction) for one in others), *settings]


def run(context: Context) -> Report:
    """Options: pairs."""
    pairs = context.count("pairs", LEAST_PAIRS if context.quick else SEEDS)
    seeds = [context.seed + offset for offset in range(pairs)]
    all_ = contenders(quick=context.quick)
    calls = [(case, one, seed) for seed in seeds for case in CASES for one in all_]
    with context.progress("hotspot", len(calls)) as advance:
        results = in_parallel(serve, calls, advance)
    found = {(case, one.routing, seed): result for (case, one, seed), result in zip(calls, results, strict=True)}
    return _report(found, [one.routing for one in all_], seeds)


def serve(case: str, contender: Contender, seed: int) -> Figures:
    """One run."""
    shape = CASES[case]
    scenario = Scenario(shape, shape.others + shape.high)
    policy = contender.make(seed, shape.block_size)
    source = hotspot_arrivals(shape, seed)
    hot = next((one.prompt.blocks for one in source.initial() if one.prompt.group == HOT), ())
    holders = Holders(hot[: shape.hot_tokens // shape.block_size])
    fleet = run_fleet(scenario.engines(contender.eviction), policy, source, seed=seed, observer=holders)
    return sum_up(fleet.served, shape, scenario.workers, holders)


def phases(shape: HotspotShape) -> dict[str, tuple[float, float]]:
    """From when to when each phase lasts. The cool one is its second half, when caches have had time to change."""
    peak = shape.quiet + shape.rise
    return {
        "quiet": (0.0, shape.quiet),
        "peak": (peak, peak + shape.peak),
        "cool": (shape.seconds - shape.cool / 2.0, shape.seconds),
    }


def spread_over(slots: Sequence[int]) -> float:
    """The number of replicas that get so many requests each, if they get equally many; 0 without requests."""
    counts = Counter(slots).values()
    return sum(counts) ** 2 / sum(count * count for count in counts) if counts else 0.0


def sum_up(served: Sequence[Served], shape: HotspotShape, workers: int, holders: Holders) -> Figures:
    def hot(begin: float, end: float) -> float:
        return spread_over(
            [one.ticket.slot for one in served if one.arrival.prompt.group == HOT and begin <= one.arrival.at < end]
        )

    ttft = [one.ttft for one in served]
    counts = Counter(one.ticket.slot for one in served)
    return Figures(
        quantile(ttft, 0.5),
        quantile(ttft, 0.95),
        sum(one.cached_tokens for one in served) / sum(one.arrival.prompt.tokens for one in served),
        {name: hot(begin, end) for name, (begin, end) in phases(shape).items()},
        {name: holders.at(end) for name, (_, end) in phases(shape).items()},
        workers * max(counts.values()) / len(served),
        [(step * STEP, holders.at(step * STEP)) for step in range(int(shape.seconds / STEP))],
    )


Found = Mapping[tuple[str, str, int], Figures]


def _report(found: Found, names: Sequence[str], seeds: Sequence[int]) -> Report:
    ours, *others = names
    means = {(case, name): fmean(found[case, name, seed].p95 for seed in seeds) for case in CASES for name in names}
    best = {case: min(others, key=lambda name: means[case, name]) for case in CASES}
    ratios = {
        case: paired_ratio(*([found[case, name, seed].p95 for seed in seeds] for name in (ours, best[case])))
        for case in CASES
    }
    hot = [found["hot", ours, seed] for seed in seeds]
    keys: dict[str, Figure] = {
        **interval_keys("p95_over_best", ratios["hot"]),
        **{f"replicas_{phase}": round(fmean(one.replicas[phase] for one in hot), 2) for phase in phases(CASES["hot"])},
        **{f"holders_{phase}": round(fmean(one.holders[phase] for one in hot), 2) for phase in phases(CASES["hot"])},
        **interval_keys("system_p95_over_best", ratios["system"]),
        "system_busiest": round(fmean(found["system", ours, seed].busiest for seed in seeds), 3),
        "best": best["hot"],
        "system_best": best["system"],
    }
    tables = [_table(case, found, names, seeds, f"Ours ÷ {best[case]}: P95 {ratios[case]}.") for case in CASES]
    data = [
        {"case": case, "policy": name, "seed": seed, "p50": one.p50, "p95": one.p95, "hits": one.hits,
         "replicas": dict(one.replicas), "holders": dict(one.holders), "busiest": one.busiest}
        for (case, name, seed), one in found.items()
    ]  # fmt: skip
    return Report(keys, tables, lambda figure: _plot(figure, found, (ours, best["hot"]), seeds), {"runs": data})


def _table(case: str, found: Found, names: Sequence[str], seeds: Sequence[int], notes: str) -> ResultTable:
    rows: list[list[Figure]] = []
    for name in names:
        runs = [found[case, name, seed] for seed in seeds]
        figures = [fmean(getattr(one, field) for one in runs) for field in ("p50", "p95", "hits", "busiest")]
        used = [
            f"{fmean(one.holders[phase] for one in runs):.1f}, {fmean(one.replicas[phase] for one in runs):.1f}"
            for phase in phases(CASES[case])
        ]
        rows.append([name, *(round(value, 3) for value in figures), *(used if case == "hot" else ())])
    rows.sort(key=lambda row: float(row[2]))
    columns: tuple[str, ...] = ("routing", "P50 TTFT, s", "P95 TTFT, s", "hit ratio", "busiest replica")
    if case == "hot":
        columns = (*columns, "replicas that cache it, that get it, quiet", "peak", "cool")
    title = "A prefix with 60 % of the requests at its peak" if case == "hot" else "Prompts that share a system prompt"
    return ResultTable(f"{title}, 4 replicas, virtual time", columns, rows, notes)


def _plot(figure: Any, found: Found, names: Sequence[str], seeds: Sequence[int]) -> None:
    axes = figure.add_subplot()
    for name in names:
        runs = [found["hot", name, seed].over_time for seed in seeds]
        times = [at for at, _ in runs[0]]
        axes.plot(times, [fmean(one[step][1] for one in runs) for step in range(len(times))], label=name)
    for begin, end in phases(CASES["hot"]).values():
        axes.axvspan(begin, end, alpha=0.1)
    axes.set(xlabel="virtual seconds", ylabel="replicas that cache the hot prefix", ylim=(0, None))
    axes.legend(fontsize="small")
