"""`kvmetrics`: the article's metrics by eviction policy, batch limit and context length, in virtual time.

CHR, RCR, MUV, TaS, OBS and P99 under eviction (section 3.1; docs/explanation/kv-metrics.md has the formulas). The
article states no workload and no device. Here conversations of 2k, 8k and 32k tokens and the article's mix run on the
simulator's `gpu` preset. Loads and caches were chosen before eviction policies were compared: the rate by what cold
caches could just not serve, caches by what the clients' conversations need. RCR counts what any worker has computed.

The engines are the simulator's, with the product's policies: routing, eviction, queue and the adaptive limit of running
requests (`plumage.batching.limit`) run as in a pool. There is no host memory.

`chr`, `muv`, `muv_over_lru`, `p99_under_eviction_over_lru`: of part (a), for each seed the mean over the three context
lengths, of ratios the geometric one. Both ratios compare eviction alone. `obs_error_steps`: of part (b), the largest
of all context lengths and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, sqrt
from statistics import fmean, geometric_mean, stdev
from typing import Any

from plumage.errors import StateError
from plumage_bench.benches.kvmetrics import batches, fleets
from plumage_bench.benches.kvmetrics.batches import ADAPTIVE, LADDERS, Ladder, Sweep
from plumage_bench.benches.kvmetrics.fleets import BY_EVICTION, CONTEXTS, MIX, OURS, PARTS, Load, Row
from plumage_bench.benches.kvmetrics.observer import Observed
from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.pairs import LEAST_PAIRS, paired_ratio, students_t
from plumage_bench.parallel import in_parallel

__all__ = ["PAIRS", "run"]

PAIRS = 5
_LRU = BY_EVICTION[1]
_TARGETS: Mapping[str, tuple[str, float, str]] = {
    "chr": ("≥", 0.70, "long conversations do not fit into the caches"),
    "muv": ("≤", 0.08, "requests in flight vary with the load"),
    "muv_over_lru": ("≤", 0.85, "KV usage is what running requests hold, which eviction changes by way of hits only"),
    "p99_under_eviction_over_lru": ("≤", 1.0, "eviction alone moves P99 less than seeds do"),
    "obs_error_steps": ("≤", 1.0, "the load that the engine saw is not that of the sweep"),
}
"""By figure: its target, and the reason if it is missed."""
_EVICTIONS = tuple(row.eviction for row in BY_EVICTION)


@dataclass
class _Found:
    """fleet: by load and row, a run for each seed. sweeps: by ladder and eviction. adaptive: likewise. estimates: by
    ladder, with the manifest's eviction."""

    fleet: dict[tuple[str, str], list[Observed]] = field(default_factory=dict)
    sweeps: dict[tuple[str, str], list[Sweep]] = field(default_factory=dict)
    adaptive: dict[tuple[str, str], list[Observed]] = field(default_factory=dict)
    estimates: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def run(context: Context) -> Report:
    """Options: pairs."""
    seeds = [context.seed + pair for pair in range(context.count("pairs", PAIRS))]
    few = seeds[:1] if context.quick else seeds
    fleet = [
        (row, load, seed)
        for load in (*CONTEXTS, MIX)
        for row in (*BY_EVICTION, *PARTS)
        for seed in (seeds if load != MIX and row in (OURS, _LRU) else few)
    ]
    sweeps = [
        (ladder, eviction, seed)
        for ladder in LADDERS
        for eviction in _EVICTIONS
        for seed in (seeds if eviction == OURS.eviction else few)
    ]
    limits = [
        (ladder, limit, eviction, seed) for ladder, eviction, seed in sweeps for limit in (*ladder.limits, ADAPTIVE)
    ]
    ramps = [(ladder, OURS.eviction, seed) for ladder in LADDERS for seed in seeds]
    with context.progress("kvmetrics", len(fleet) + len(limits) + len(ramps)) as advance:
        served = in_parallel(fleets.measure, fleet, advance)
        saturated = in_parallel(batches.saturate, limits, advance)
        estimated = in_parallel(batches.estimate, ramps, advance)
    found = _Found()
    for (row, load, _), one in zip(fleet, served, strict=True):
        found.fleet.setdefault((load.label, row.label), []).append(one)
    by_call = dict(zip(limits, saturated, strict=True))
    for ladder, eviction, seed in sweeps:
        place = ladder.label, eviction
        static = {limit: by_call[ladder, limit, eviction, seed] for limit in ladder.limits}
        found.sweeps.setdefault(place, []).append(Sweep(static))
        found.adaptive.setdefault(place, []).append(by_call[ladder, ADAPTIVE, eviction, seed])
    for (ladder, _, seed), best in zip(ramps, estimated, strict=True):
        if best is None:
            raise StateError(f"{ladder.label}, seed {seed}: the run made no batch for long enough to be compared")
        found.estimates.setdefault(ladder.label, []).append(best)
    return _report(found, {load.label: load.ceiling(context.seed) for load in (*CONTEXTS, MIX)})


def over_contexts(
    found: Mapping[tuple[str, str], Sequence[Observed]],
    row: Row,
    of: Callable[[Observed], float],
    mean: Callable[[Iterable[float]], float] = fmean,
) -> list[float]:
    """For each seed the mean over the context lengths."""
    columns = zip(*([of(one) for one in found[load.label, row.label]] for load in CONTEXTS), strict=True)
    return [mean(column) for column in columns]


def level_keys(name: str, values: Sequence[float]) -> dict[str, Figure]:
    """A mean over seeds with its 95 % interval by Student's t; of fewer than five seeds, the least and the greatest."""
    mean, low, high = fmean(values), min(values), max(values)
    if len(values) >= LEAST_PAIRS:
        half = students_t(len(values) - 1) * stdev(values) / sqrt(len(values))
        low, high = mean - half, mean + half
    return {name: mean, f"{name}_low": low, f"{name}_high": high, f"{name}_pairs": len(values)}


def closing(found: _Found) -> dict[str, Figure]:
    """The closing line."""
    fleet = found.fleet
    muv, p99 = (
        paired_ratio(*(over_contexts(fleet, row, of, geometric_mean) for row in (OURS, _LRU))) for of in (_muv, _p99)
    )
    keys = level_keys("chr", over_contexts(fleet, OURS, _chr)) | level_keys("muv", over_contexts(fleet, OURS, _muv))
    keys |= interval_keys("muv_over_lru", muv) | interval_keys("p99_under_eviction_over_lru", p99)
    keys["obs_error_steps"] = max(
        sweep.error(batch)
        for ladder in LADDERS
        for sweep, (batch, _) in zip(
            found.sweeps[ladder.label, OURS.eviction], found.estimates[ladder.label], strict=True
        )
    )
    keys["rcr"] = fmean(over_contexts(fleet, OURS, lambda one: one.rcr))
    keys["rcr_lru"] = fmean(over_contexts(fleet, _LRU, lambda one: one.rcr))
    keys["chr_mix"] = fmean(one.chr for one in fleet[MIX.label, OURS.label])
    for ladder in LADDERS:
        sweeps = found.sweeps[ladder.label, OURS.eviction]
        keys[f"tas_{ladder.label}"] = fmean(one.tas for one in sweeps)
        keys[f"obs_{ladder.label}"] = _most_common([one.obs for one in sweeps])
        keys[f"obs_estimated_{ladder.label}"] = _most_common([batch for batch, _ in found.estimates[ladder.label]])
    return keys


def _most_common(values: Sequence[int]) -> int:
    return max(sorted(set(values)), key=values.count)


def target_table(keys: Mapping[str, Figure]) -> ResultTable:
    """Each target with its verdict by the interval's end, and why it may be missed."""
    rows: list[tuple[Figure, ...]] = []
    for name, (sign, target, why) in _TARGETS.items():
        end = keys.get(f"{name}_{'low' if sign == '≥' else 'high'}", keys[name])
        met = float(end) >= target if sign == "≥" else float(end) <= target
        rows.append((name, keys[name], end, f"{sign} {target:g}", "met" if met else "missed", "" if met else why))
    columns = ("", "figure", "interval's end", "target", "verdict", "why")
    return ResultTable("Targets", columns, rows)


def _chr(one: Observed) -> float:
    return one.chr


def _muv(one: Observed) -> float:
    return one.muv


def _p99(one: Observed) -> float:
    if isnan(one.p99_evicting):
        raise StateError("a run had no request that ran while blocks were evicted: its caches are too large")
    return one.p99_evicting


def _report(found: _Found, ceilings: Mapping[str, float]) -> Report:
    data = {
        "fleet": {f"{load}, {row}": [asdict(one) for one in each] for (load, row), each in found.fleet.items()},
        "static": {
            f"{ladder}, {eviction}": [{limit: asdict(one) for limit, one in sweep.static.items()} for sweep in each]
            for (ladder, eviction), each in found.sweeps.items()
        },
        "adaptive": {
            f"{ladder}, {eviction}": [asdict(one) for one in each]
            for (ladder, eviction), each in found.adaptive.items()
        },
        "estimates": found.estimates,
        "ceilings": dict(ceilings),
        "ours": OURS.ours().listed(),
    }
    keys = closing(found)
    tables = [
        _fleet_table(found, ceilings),
        _ratio_table(found),
        _limit_table(found),
        _obs_table(found),
        target_table(keys),
    ]
    return Report(keys, tables, lambda figure: _plot(figure, found), data)


def _mean(each: Sequence[Observed], name: str) -> float:
    return fmean(getattr(one, name) for one in each)


def _fleet_table(found: _Found, ceilings: Mapping[str, float]) -> ResultTable:
    rows = [
        (
            load.label, row.label, len(each), round(_mean(each, "chr"), 3), round(ceilings[load.label], 3),
            round(_mean(each, "rcr"), 3), round(_mean(each, "muv"), 4), round(_mean(each, "usage"), 3),
            round(_mean(each, "p99_evicting"), 1), round(_mean(each, "evicting"), 2), round(_mean(each, "rate"), 1),
        )
        for load in (*CONTEXTS, MIX)
        for row in (*BY_EVICTION, *PARTS)
        for each in (found.fleet[load.label, row.label],)
    ]  # fmt: skip
    return ResultTable(
        f"(a) {fleets.WORKERS} workers by context length",
        ("context", "", "seeds", "CHR", "at most", "RCR", "MUV", "mean usage", "P99 under eviction, s", "of them",
         "tokens/s"),
        rows,
        "At most: the hit ratio of an endless cache, of the mix after a tenth of it. MUV: standard deviation over time "
        "of a worker's KV usage, mean of the workers. Of them: share of the requests that ran while blocks were "
        "evicted. Plumage: LBGR, the tree's order, Hotness, the adaptive limit.",
    )  # fmt: skip


def _ratio_table(found: _Found) -> ResultTable:
    def over_lru(load: Load, row: Row, of: Callable[[Observed], float]) -> str:
        runs = found.fleet[load.label, row.label]
        lru = found.fleet[load.label, _LRU.label][: len(runs)]  # a quick run has fewer seeds of RLT
        return str(paired_ratio([of(one) for one in runs], [of(one) for one in lru]))

    rows = [
        (load.label, row.label, *(over_lru(load, row, of) for of in (_chr, _muv, _p99)))
        for load in CONTEXTS
        for row in BY_EVICTION
        if row != _LRU
    ]
    columns = ("context", "", "CHR ÷ LRU's", "MUV ÷ LRU's", "P99 under eviction ÷ LRU's")
    notes = (
        "KV usage is what running requests hold. Which free block is evicted changes it only by way of later hits, so "
        "MUV follows the load and the limit of running requests more than the eviction policy."
    )
    return ResultTable("(a) Eviction alone, in pairs", columns, rows, notes)


def _limit_table(found: _Found) -> ResultTable:
    rows: list[tuple[Figure, ...]] = []
    for (label, eviction), each in found.sweeps.items():
        of_limit = {f"{limit}": [sweep.static[limit] for sweep in each] for limit in each[0].static}
        of_limit["adaptive"] = found.adaptive[label, eviction]
        for limit, runs in of_limit.items():
            names = ("rate", "between", "preempted", "chr", "rcr", "muv", "p99_evicting")
            rows.append((label, eviction, limit, len(runs), *(round(_mean(runs, name), 3) for name in names)))
    return ResultTable(
        "(b) One saturated worker by limit of running requests",
        ("context", "eviction", "limit", "seeds", "tokens/s", "P95 between tokens, s", "preempted", "CHR", "RCR", "MUV",
         "P99 under eviction, s"),
        rows,
        f"Means over seeds. Sustained: at most {batches.PREEMPTED:.0%} preempted, and at most {batches.BETWEEN:g} s "
        "between tokens.",
    )  # fmt: skip


def _obs_table(found: _Found) -> ResultTable:
    rows: list[tuple[Figure, ...]] = [
        (
            ladder.label,
            eviction,
            round(fmean(one.tas for one in each), 1),
            ", ".join(f"{one.obs}" for one in each),
            *_estimated(found, ladder, eviction),
        )
        for ladder in LADDERS
        for eviction in _EVICTIONS
        for each in (found.sweeps[ladder.label, eviction],)
    ]
    return ResultTable(
        "(b) TaS and OBS, each seed",
        ("context", "eviction", "TaS, tokens/s", "OBS by the sweep", "OBS estimated", "TaS estimated"),
        rows,
        "The estimate is the product's, from one run with the adaptive limit while the number of clients doubles. Its "
        "TaS is of fewer clients, whose conversations fit into the cache.",
    )


def _estimated(found: _Found, ladder: Ladder, eviction: str) -> tuple[str, str]:
    if eviction != OURS.eviction:
        return "-", "-"
    each = found.estimates[ladder.label]
    return ", ".join(f"{batch}" for batch, _ in each), f"{fmean(rate for _, rate in each):.1f}"


def _plot(figure: Any, found: _Found) -> None:
    left, right = figure.subplots(1, 2)
    for row in BY_EVICTION:
        shown = [_mean(found.fleet[load.label, row.label], "muv") for load in CONTEXTS]
        left.plot([load.label for load in CONTEXTS], shown, "o-", label=row.label)
    left.axhline(0.08, color="grey", linestyle=":", label="the article's target")
    left.set(xlabel="context", ylabel="MUV", title="four workers", ylim=(0, None))
    left.legend(fontsize="small")
    for ladder in LADDERS:
        for sweep in found.sweeps[ladder.label, OURS.eviction][:1]:
            points = sorted((limit, one.rate) for limit, one in sweep.static.items())
            (line,) = right.plot(*zip(*points, strict=True), "o-", label=ladder.label)
            right.axvline(sweep.obs, color=line.get_color(), linestyle=":")
    right.set(xscale="log", xlabel="static limit; dotted: OBS", ylabel="output tokens a second", title="one worker")
    right.legend(fontsize="small", title="context")
