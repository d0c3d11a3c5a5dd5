"""`adapters`: LoRA adapters that do not all fit into one replica's slots, under rules for where their requests go.

An engine computes with four adapters at a time, and a request for another one waits for a slot. The rules, each with
LBGR: *ours* (`plumage.routing.adapters`); *any replica*; *with a slot*, those where the request need not wait; *loaded
first*, those that have the adapter, else those with a free slot, like the LoRA filter of the Gateway API's endpoint
picker. Loaded first also runs with llm-d's policy and with the least load.

- `p95_over_any`: P95 of the time to first token, ours ÷ any replica, the worst cell. `p95_over_best`: ours ÷ the best
  other rule or policy of the cell, the worst cell.
- `waits_…`: the share of ours that went to a replica without a slot, by cell.

More adapters than the fleet has slots (`crowded`) make some wait under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from plumage.routing.adapters import AdapterSlots, AdapterState
from plumage.routing.interface import ReplicaState
from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.parallel import in_parallel
from plumage_bench.quantiles import quantile
from plumage_bench.routing.contenders import BASELINES, OURS, Contender
from plumage_bench.routing.scenario import Scenario
from plumage_bench.virtual_time.fleet import AdapterRule, run_fleet
from plumage_bench.workloads import AdaptersShape

__all__ = ["CELLS", "RULES", "AnyReplica", "LoadedFirst", "WithSlot", "run"]

CELLS: Final = {
    "calm": (AdaptersShape(), 20.0),
    "hot": (AdaptersShape(adapters=8), 40.0),
    "crowded": (AdaptersShape(adapters=24, exponent=0.0), 20.0),
}
SEEDS: Final = 8
_HELD_OUT: Final = 200  # added to seeds: the rule was chosen on others


class AnyReplica:
    """No rule. It keeps account, so that the report can show what requests found."""

    def __init__(self, slots: int, adapters: int) -> None:
        self.slots = AdapterSlots(slots, adapters)

    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
        return candidates

    def routed(self, adapter: str, slot: int) -> AdapterState:
        return self.slots.routed(adapter, slot)

    def ended(self, adapter: str, slot: int) -> None:
        self.slots.ended(adapter, slot)

    def _with(self, adapter: str, candidates: Sequence[ReplicaState], *wanted: AdapterState) -> list[ReplicaState]:
        return [load for load in candidates if self.slots.state(adapter, load.slot) in wanted]


class WithSlot(AnyReplica):
    """Replicas where the request need not wait for a slot."""

    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
        return self._with(adapter, candidates, AdapterState.LOADED, AdapterState.FREE_SLOT) or candidates


class LoadedFirst(AnyReplica):
    """Replicas that have the adapter, however busy; else those with a free slot."""

    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
        loaded = self._with(adapter, candidates, AdapterState.LOADED)
        return loaded or self._with(adapter, candidates, AdapterState.FREE_SLOT) or candidates


class _Ours(AnyReplica):
    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
        return self.slots.narrow(adapter, candidates)


def _baseline(routing: str) -> Contender:
    return next(one for one in BASELINES if one.routing == routing).over(OURS.eviction)


RULES: Final[Mapping[str, tuple[Contender, Callable[[int, int], AnyReplica]]]] = {
    "ours": (OURS, _Ours),
    "any replica": (OURS, AnyReplica),
    "with a slot": (OURS, WithSlot),
    "loaded first": (OURS, LoadedFirst),
    "loaded first, llm-d": (_baseline("llm-d"), LoadedFirst),
    "loaded first, least load": (_baseline("least load"), LoadedFirst),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Times to first token in seconds. waits: share of the requests that found no slot."""

    p50: float
    p95: float
    longest: float
    waits: float


def run(context: Context) -> Report:
    """Options: pairs."""
    pairs = context.count("pairs", LEAST_PAIRS if context.quick else SEEDS)
    seeds = [_HELD_OUT + context.seed + offset for offset in range(pairs)]
    calls = [(cell, rule, seed) for seed in seeds for cell in CELLS for rule in RULES]
    with context.progress("adapters", len(calls)) as advance:
        results = in_parallel(serve, calls, advance)
    return _report(dict(zip(calls, results, strict=True)), seeds)


def serve(cell: str, rule: str, seed: int) -> Figures:
    """One run."""
    shape, rate = CELLS[cell]
    contender, make = RULES[rule]
    scenario = Scenario(shape, rate)
    engines = scenario.engines(contender.eviction)
    known = make(engines[0].adapter_slots, shape.adapters)
    adapters: AdapterRule = known
    policy = contender.make(seed, shape.block_size)
    fleet = run_fleet(engines, policy, scenario.source(seed), seed=seed, adapters=adapters)
    ttft = [one.ttft for one in fleet.served]
    waits = known.slots.requests[AdapterState.WAITS] / len(fleet.served)
    return Figures(quantile(ttft, 0.5), quantile(ttft, 0.95), max(ttft), waits)


Found = Mapping[tuple[str, str, int], Figures]


def _report(found: Found, seeds: Sequence[int]) -> Report:
    def ratio(cell: str, other: str) -> PairedRatio:
        return paired_ratio(*([found[cell, rule, seed].p95 for seed in seeds] for rule in ("ours", other)))

    def mean(cell: str, rule: str) -> float:
        return fmean(found[cell, rule, seed].p95 for seed in seeds)

    best = {cell: min((rule for rule in RULES if rule != "ours"), key=lambda rule: mean(cell, rule)) for cell in CELLS}
    over_any = {cell: ratio(cell, "any replica") for cell in CELLS}
    over_best = {cell: ratio(cell, best[cell]) for cell in CELLS}
    worst_any, worst_best = (max(ratios.values(), key=lambda one: one.ratio) for ratios in (over_any, over_best))
    keys: dict[str, Figure] = {
        **interval_keys("p95_over_any", worst_any),
        **interval_keys("p95_over_best", worst_best),
        **{f"waits_{cell}": round(fmean(found[cell, "ours", seed].waits for seed in seeds), 4) for cell in CELLS},
    }
    tables = [
        _table(cell, found, seeds, f"Ours ÷ any replica: {over_any[cell]}. Ours ÷ {best[cell]}: {over_best[cell]}.")
        for cell in CELLS
    ]
    data = [
        {"cell": cell, "rule": rule, "seed": seed, "p50": one.p50, "p95": one.p95, "longest": one.longest,
         "waits": one.waits}
        for (cell, rule, seed), one in found.items()
    ]  # fmt: skip
    return Report(keys, tables, lambda figure: _plot(figure, found, seeds), {"runs": data})


def _table(cell: str, found: Found, seeds: Sequence[int], notes: str) -> ResultTable:
    rows: list[list[Figure]] = []
    for rule in RULES:
        runs = [found[cell, rule, seed] for seed in seeds]
        means = [fmean(getattr(one, name) for one in runs) for name in ("p50", "p95", "longest")]
        rows.append([rule, *(round(value, 3) for value in means), f"{fmean(one.waits for one in runs):.2%}"])
    shape, rate = CELLS[cell]
    title = f"{cell}: {shape.adapters} adapters, 4 replicas with 4 slots, {rate:.0f} requests a second, virtual time"
    return ResultTable(title, ("rule", "P50 TTFT, s", "P95 TTFT, s", "longest, s", "found no slot"), rows, notes)


def _plot(figure: Any, found: Found, seeds: Sequence[int]) -> None:
    for place, cell in enumerate(CELLS, 1):
        axes = figure.add_subplot(1, len(CELLS), place)
        axes.barh(list(RULES), [fmean(found[cell, rule, seed].p95 for seed in seeds) for rule in RULES])
        axes.set(xlabel="P95 to first token, s", title=cell, xscale="log")
        axes.invert_yaxis()
        if place > 1:
            axes.set_yticks([])
