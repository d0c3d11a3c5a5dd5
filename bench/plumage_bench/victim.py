"""`victim`: a fleet of six loses one replica: the one with the coldest cache, or one at random, in pairs.

Both of a pair are the same fleet under the same load up to then: groups of prompts whose popularity falls as Zipf's
law, routed by LBGR to where they are cached. Hotness is what agents report: the uses, pool-wide, of all that a replica
holds. The hit ratio is that of the next half minute's answers, by the whole fleet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from plumage.autoscaling import coldest_first
from plumage_bench.autoscale import BLOCK, Phase, arrivals, engine
from plumage_bench.contenders import OURS
from plumage_bench.elastic import ElasticFleet
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.pairs import paired_ratio

__all__ = ["Pair", "after_loss", "run"]

REPLICAS = 6
AFTER = 30.0
_TOKENS = 2048
_ZIPF = 0.9


@dataclass(frozen=True, slots=True)
class Pair:
    """Hit ratios: in the half minute before, and after the loss of either replica."""

    seed: int
    before: float
    coldest: float
    random: float


def after_loss(seed: int, *, warm: float, coldest: bool) -> tuple[float, float]:
    """Hit ratio before and after one replica went."""
    fleet = ElasticFleet(engine(), OURS.make(seed, BLOCK), REPLICAS, seed=seed)
    marks: list[tuple[float, float]] = []

    def lose(_: float) -> None:
        if coldest:
            victim = int(coldest_first(fleet.heats())[0])
        else:
            victim = random.Random(f"victim-{seed}").choice(fleet.ready)
        fleet.resize(REPLICAS - 1, leaving=[victim])

    for at in (warm - AFTER, warm, warm + AFTER):
        fleet.fleet.call_at(at, lambda: marks.append((fleet.cached, fleet.answered)))
    fleet.fleet.call_at(warm, lambda: lose(warm))
    fleet.serve(arrivals([Phase(warm + AFTER, 3.0, 96)], _TOKENS, seed, zipf=_ZIPF), warm + AFTER)
    (cached, answered), (cached_then, answered_then), (cached_last, answered_last) = marks
    before = (cached_then - cached) / (answered_then - answered)
    return before, (cached_last - cached_then) / (answered_last - answered_then)


def run(context: Context) -> Report:
    """coldest, random: mean hit ratio of the half minute after; ratio: of the first to the second, within pairs."""
    warm, count = (150.0, 10) if context.quick else (300.0, 20)
    pairs = []
    with context.progress("victim", count) as advance:
        for seed in range(context.seed, context.seed + count):
            before, cold = after_loss(seed, warm=warm, coldest=True)
            pairs.append(Pair(seed, before, cold, after_loss(seed, warm=warm, coldest=False)[1]))
            advance(1)
    rng = random.Random(context.seed)
    gain = paired_ratio([pair.coldest for pair in pairs], [pair.random for pair in pairs], rng)
    keys = {
        "pairs": len(pairs),
        "before": round(fmean(pair.before for pair in pairs), 4),
        "coldest": round(fmean(pair.coldest for pair in pairs), 4),
        "random": round(fmean(pair.random for pair in pairs), 4),
        "ratio": round(gain.ratio, 4),
        "ratio_low": round(gain.low, 4),
    }
    rows = [[pair.seed, round(pair.before, 4), round(pair.coldest, 4), round(pair.random, 4)] for pair in pairs]
    table = ResultTable(
        f"Hit ratio of {REPLICAS} replicas, and right after one of them went",
        ("seed", "before", "coldest went", "a random one went"),
        rows,
        f"coldest ÷ random: {gain}",
    )
    data = {"pairs": [[pair.seed, pair.before, pair.coldest, pair.random] for pair in pairs]}
    return Report(keys, [table], lambda figure: _plot(figure, pairs), data)


def _plot(figure: Any, pairs: Sequence[Pair]) -> None:
    axes = figure.subplots()
    for pair in pairs:
        axes.plot([0, 1, 2], [pair.before, pair.coldest, pair.random], marker="o", alpha=0.5)
    axes.set(ylabel="hit ratio", xticks=[0, 1, 2])
    axes.set_xticklabels(["before", "coldest went", "a random one went"])
