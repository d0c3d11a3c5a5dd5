"""`plumage bench trace [--trace FILE]`: replays a production trace through one cache, and through a fleet.

(a) One cache of 1 to 20 % of the distinct blocks: Plumage's eviction and every policy of libCacheSim. `min_over_best`
compares Plumage's as an engine caches, full blocks only, with theirs as the library is used, with partial blocks too.
Equal conditions have `min_over_best_partial`, both with partial blocks, and in a full run `min_over_best_full`, both
without. (b) Eight workers in virtual time: Plumage's routing and every other. Without `--trace` a synthetic trace from
a seed is used, and the output says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage_bench.benches.trace import libcache, report, routed
from plumage_bench.benches.trace.hitratios import (
    BOUND,
    OURS,
    SHARES,
    Contender,
    Margin,
    Ratios,
    capacities,
    margin,
    measure,
    over_seeds,
)
from plumage_bench.benches.trace.mooncake import load
from plumage_bench.benches.trace.processes import Trace, replay_all
from plumage_bench.benches.trace.routed import Fleet, Routed
from plumage_bench.benches.trace.synthetic import synthetic_trace
from plumage_bench.harness import Context, Report
from plumage_bench.routing.contenders import EVICTIONS
from plumage_bench.routing.contenders import OURS as ROUTING

__all__ = ["run"]

_SYNTHETIC_REQUESTS, _SYNTHETIC_QUICK = 12_000, 6_000
_ROUTED_QUICK = 1_500
_SEEDS, _SEEDS_QUICK = 3, 2
_NAMINGS, _NAMINGS_QUICK = 16, 3

_CACHE_KEYS = {
    "min_over_best": "whole trace",
    "min_over_best_second": "second half",
    "min_over_best_partial": "whole trace, both +",
    "min_over_best_partial_second": "second half, both +",
    "min_over_best_full": "whole trace, both -",
    "min_over_best_full_second": "second half, both -",
    "min_over_best_worst_seed": "whole trace, worst",
}

Measured = Mapping[Contender, Ratios]


@dataclass(frozen=True, slots=True)
class _OneCache:
    """The results of one cache. ours: a run for each seed of the block names, without partial blocks, as an engine
    caches; ours_partial: with them. theirs: by policy of libCacheSim, with partial blocks; theirs_full: without them,
    empty in a quick run. bounds: ratios that no policy can exceed, by the name of the row."""

    ours: list[Ratios]
    ours_partial: list[Ratios]
    theirs: dict[str, Ratios]
    theirs_full: dict[str, Ratios]
    bounds: dict[str, Ratios]


def run(context: Context) -> Report:
    trace, about = _trace(context)
    capacities(trace)  # fails early for a trace that is too small
    contenders = list(_contenders(context.seed, quick=context.quick))
    with context.progress("one cache", len(contenders)) as advance:
        measured = replay_all(measure, trace, contenders, advance)
    served = trace[:_ROUTED_QUICK] if context.quick else trace
    seeds = [context.seed + offset for offset in range(_SEEDS_QUICK if context.quick else _SEEDS)]
    factor = routed.stretch(served)
    runs = routed.fleets(seeds, factor)
    with context.progress("fleet", len(runs)) as advance:
        results = replay_all(routed.route, served, runs, advance)
    rows = _by_policy(results)
    tables = report.routed_tables(rows, len(seeds), factor, len(served))
    data = {
        "requests": len(trace),
        "stretch": factor,
        "seeds": seeds,
        "fleet_by_seed": [{"seed": seed, **_routing_keys(_of_seed(results, seed))} for seed in seeds],
    }
    return _report(measured, rows, about, tables, data)


def _trace(context: Context) -> tuple[Trace, str]:
    """The trace, and a note for readers about it."""
    given = context.options.get("trace")
    if given is not None:
        trace: Trace = load(Path(given))
        return trace, _described(trace)
    trace = synthetic_trace(_SYNTHETIC_QUICK if context.quick else _SYNTHETIC_REQUESTS, context.seed)
    warning = "SYNTHETIC TRACE: made from a seed, not recorded; its figures are not valid for production."
    context.console.print(f"[bold yellow]{warning} Give a real one with --trace FILE (Mooncake's JSONL).[/bold yellow]")
    return trace, f"{warning} {_described(trace)}"


def _described(trace: Trace) -> str:
    accesses = sum(len(request.blocks) for request in trace)
    distinct = len({block for request in trace for block in request.blocks})
    return f"{len(trace):,} requests, {accesses:,} block accesses, {distinct:,} distinct."


def _contenders(seed: int, *, quick: bool) -> Iterable[Contender]:
    """Ours and the bounds as an engine caches, libCacheSim's as the library is used. A full run has the reverse too."""
    names = libcache.LEADERS if quick else libcache.NAMES
    for partial in (False, True):
        for offset in range(_NAMINGS_QUICK if quick else _NAMINGS):
            yield Contender(OURS, partial, seed + offset)
    yield Contender(BOUND, partial=False)
    yield Contender(libcache.OFFLINE, partial=True)
    for name in names:
        yield Contender(name, partial=True)
    for name in () if quick else names:
        yield Contender(name, partial=False)


def _of_seed(runs: Mapping[Fleet, Routed], seed: int) -> dict[str, Routed]:
    return {fleet.label: result for fleet, result in runs.items() if fleet.seed == seed}


def _by_policy(runs: Mapping[Fleet, Routed]) -> dict[str, Routed]:
    """Means over seeds, by routing and eviction."""
    grouped: dict[str, list[Routed]] = {}
    for fleet, result in runs.items():
        grouped.setdefault(fleet.label, []).append(result)
    return {name: routed.mean(results) for name, results in grouped.items()}


def _report(
    measured: Measured, rows: Mapping[str, Routed], about: str, tables: Sequence[Any], data: Mapping[str, Any]
) -> Report:
    cache = _one_cache(measured)
    margins = _margins(cache)
    own = _own_rows(cache)
    shown = {**own, **_their_rows(cache)}
    of_cache = [report.ratios_table(shown, about, second=second) for second in (False, True)]
    return Report(
        {**_cache_keys(margins), **_routing_keys(rows)},
        [*of_cache, report.margins_table(margins), *tables],
        lambda figure: report.draw(figure, cache.theirs, own, rows),
        {
            **data,
            "trace": about,
            "hit_ratios": {name: _plain(ratios) for name, ratios in shown.items()},
            f"{OURS} by naming": [_plain(ratios) for ratios in cache.ours],
        },
    )


def _one_cache(measured: Measured) -> _OneCache:
    def ours(*, partial: bool) -> list[Ratios]:
        return [ratios for c, ratios in measured.items() if c.policy == OURS and c.partial is partial]

    def theirs(*, partial: bool) -> dict[str, Ratios]:
        return {
            c.policy: ratios for c, ratios in measured.items() if c.policy in libcache.NAMES and c.partial is partial
        }

    bounds = {
        BOUND: measured[Contender(BOUND, partial=False)],
        "Belady + partial": measured[Contender(libcache.OFFLINE, partial=True)],
    }
    return _OneCache(ours(partial=False), ours(partial=True), theirs(partial=True), theirs(partial=False), bounds)


def _margins(cache: _OneCache) -> dict[str, list[Margin]]:
    """Every comparison of the two sides, by its label."""
    sides = {
        "": (over_seeds(cache.ours), cache.theirs),
        ", worst": (over_seeds(cache.ours, min), cache.theirs),
        ", both +": (over_seeds(cache.ours_partial), cache.theirs),
        ", both -": (over_seeds(cache.ours), cache.theirs_full),
    }
    return {
        f"{part}{label}": [margin(ours, theirs, share, second=second) for share in SHARES]
        for label, (ours, theirs) in sides.items()
        if theirs
        for part, second in (("whole trace", False), ("second half", True))
    }


def _cache_keys(margins: Mapping[str, Sequence[Margin]]) -> dict[str, float]:
    """The smallest margin over the sizes, for each comparison that was made."""
    return {key: min(one.over for one in margins[label]) for key, label in _CACHE_KEYS.items() if label in margins}


def _own_rows(cache: _OneCache) -> dict[str, Ratios]:
    """Ours, and the bounds."""
    return {
        OURS: over_seeds(cache.ours),
        f"{OURS}, worst of {len(cache.ours)}": over_seeds(cache.ours, min),
        f"{OURS} + partial": over_seeds(cache.ours_partial),
        **cache.bounds,
    }


def _their_rows(cache: _OneCache) -> dict[str, Ratios]:
    """libCacheSim's, best first; then those without partial blocks, in the same order."""
    best_first = dict(sorted(cache.theirs.items(), key=lambda item: -sum(ratio.whole for ratio in item[1].values())))
    full = {f"{name} - partial": cache.theirs_full[name] for name in best_first if name in cache.theirs_full}
    return {**best_first, **full}


def _routing_keys(rows: Mapping[str, Routed]) -> dict[str, float]:
    """Ours ÷ the best other routing with the same eviction, the worse of the evictions: hit ratios (more is better),
    TTFT (less is better)."""
    over = [_over_best(rows, eviction) for eviction in EVICTIONS]
    return {
        "fleet_hit_over_best": min(hit for hit, _, _ in over),
        "fleet_ttft_p50_over_best": max(p50 for _, p50, _ in over),
        "fleet_ttft_p95_over_best": max(p95 for _, _, p95 in over),
    }


def _over_best(rows: Mapping[str, Routed], eviction: str) -> tuple[float, float, float]:
    """Ours ÷ the best other with one eviction: hit ratio, TTFT at P50 and P95."""
    own = ROUTING.over(eviction).label
    ours, others = rows[own], [row for name, row in rows.items() if name != own and name.endswith(f" + {eviction}")]
    return (
        ours.hit_ratio / max(*(row.hit_ratio for row in others), 1e-9),
        ours.ttft_p50 / min(row.ttft_p50 for row in others),
        ours.ttft_p95 / min(row.ttft_p95 for row in others),
    )


def _plain(ratios: Ratios) -> dict[str, list[float]]:
    return {f"{share:g}": [ratio.whole, ratio.second] for share, ratio in ratios.items()}
