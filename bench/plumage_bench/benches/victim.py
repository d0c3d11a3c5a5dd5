"""`victim`: a fleet of six loses one replica: the one with the coldest cache, or a random one, in pairs.

Up to that time both fleets of a pair are equal, with equal loads: groups of prompts with popularity by Zipf's law,
routed by LBGR to where they are cached. Hotness is what agents report: the pool-wide uses of everything that a replica
caches. The hit ratio is that of all answers in the next minute. There are two kinds of fleet. One grew by two replicas
a minute ago, for a peak that has passed; this is when an autoscaler shrinks a pool. The other has had six replicas
since the start, and routing has made their caches about equally hot.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from plumage.autoscaling import coldest_first
from plumage_bench.benches.autoscale import BLOCK, Phase, arrivals, engine
from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.routing.contenders import OURS
from plumage_bench.virtual_time.elastic import START, ElasticFleet

__all__ = ["FLEETS", "Pair", "after_loss", "run"]

REPLICAS = 6
AFTER = 60.0
FLEETS: Mapping[str, int] = {"grown": 4, "steady": REPLICAS}
"""Replicas at the start; the others are added so that they serve for a minute."""
_SERVED = 60.0
_TOKENS = 2048
_ZIPF = 0.9
_RATE = 2.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Hit ratios: in the minute before, and after the loss of each of the two replicas."""

    seed: int
    before: float
    coldest: float
    random: float


def after_loss(seed: int, *, first: int, warm: float, coldest: bool) -> tuple[float, float]:
    """Hit ratio before and after one replica is deleted, `warm` seconds from the start. first: replicas at the
    start."""
    fleet = ElasticFleet(engine(), OURS.make(seed, BLOCK), first, seed=seed)
    marks: list[tuple[float, float]] = []

    def lose() -> None:
        if coldest:
            victim = int(coldest_first(fleet.cache_hotness())[0])
        else:
            victim = random.Random(f"victim-{seed}").choice(fleet.ready)
        fleet.resize(REPLICAS - 1, leaving=[victim])

    for at in (warm - AFTER, warm, warm + AFTER):
        fleet.fleet.call_at(at, lambda: marks.append((fleet.cached, fleet.answered)))
    fleet.fleet.call_at(warm - _SERVED - START, lambda: fleet.resize(REPLICAS))
    fleet.fleet.call_at(warm, lose)
    fleet.serve(arrivals([Phase(warm + AFTER, _RATE, 96)], _TOKENS, seed, zipf=_ZIPF), warm + AFTER)
    (cached, answered), (cached_then, answered_then), (cached_last, answered_last) = marks
    before = (cached_then - cached) / (answered_then - answered)
    return before, (cached_last - cached_then) / (answered_last - answered_then)


def run(context: Context) -> Report:
    """For each fleet: the mean hit ratio of the minute after the loss of the coldest or of a random replica, and their
    paired ratio."""
    warm, count = (180.0, 10) if context.quick else (300.0, 20)
    pairs: dict[str, list[Pair]] = {}
    with context.progress("victim", count * len(FLEETS)) as advance:
        for name, first in FLEETS.items():
            pairs[name] = []
            for seed in range(context.seed, context.seed + count):
                before, cold = after_loss(seed, first=first, warm=warm, coldest=True)
                other = after_loss(seed, first=first, warm=warm, coldest=False)[1]
                pairs[name].append(Pair(seed, before, cold, other))
                advance(1)
    gains = {
        name: paired_ratio([one.coldest for one in found], [one.random for one in found])
        for name, found in pairs.items()
    }
    keys: dict[str, Figure] = {"pairs": count}
    for name, found in pairs.items():
        keys |= {
            f"{name}_before": round(fmean(one.before for one in found), 4),
            f"{name}_coldest": round(fmean(one.coldest for one in found), 4),
            f"{name}_random": round(fmean(one.random for one in found), 4),
            **interval_keys(f"{name}_ratio", gains[name]),
        }
    tables = [_table(name, found, gains[name]) for name, found in pairs.items()]
    data = {name: [[one.seed, one.before, one.coldest, one.random] for one in found] for name, found in pairs.items()}
    return Report(keys, tables, lambda figure: _plot(figure, pairs), data)


def _table(name: str, pairs: Sequence[Pair], gain: PairedRatio) -> ResultTable:
    rows: list[list[Figure]] = [
        [one.seed, round(one.before, 4), round(one.coldest, 4), round(one.random, 4)] for one in pairs
    ]
    return ResultTable(
        f"A {name} fleet of {REPLICAS} loses one: hit ratio",
        ("seed", "before", "coldest went", "a random one went"),
        rows,
        f"coldest ÷ random: {gain}",
    )


def _plot(figure: Any, pairs: Mapping[str, Sequence[Pair]]) -> None:
    panels = figure.subplots(1, len(pairs), sharey=True)
    for axes, (name, found) in zip(panels, pairs.items(), strict=True):
        for one in found:
            axes.plot([0, 1, 2], [one.before, one.coldest, one.random], marker="o", alpha=0.5)
        axes.set(title=name, ylabel="hit ratio", xticks=[0, 1, 2])
        axes.set_xticklabels(["before", "coldest", "random"])
