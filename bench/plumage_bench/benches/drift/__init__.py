"""`drift`: does a manifest that adapts serve each load as well as the setting that would have been best for it?

The loads are the article's (§4.3; `workloads.article`): retrieval, code completion, agents, chats, summaries, and the
mix whose shares change from code and agents to retrieval and summaries. One simulated engine serves each of them in
virtual time to 64 clients that wait for their answers. The figure is prompt and answer tokens a second.

Ours is the default manifest, and the same with host memory. Its eviction learns the weight of frequency, its batch
limit follows preemptions, its host memory learns what is worth a copy. Against it stand fixed settings: of eviction
(LRU, RLT, the printed hotness, weights of frequency) with each order and each batch limit; and with host memory, of
eviction with each admission, ageing and promotion. Of each load the best of them is chosen afterwards, by the mean of
the same seeds, so it is also the luckiest. A quick run changes one part at a time, and has no RLT.

`regret` is 1 − ours ÷ that best, paired by seed, of the pool and load where it is largest. The ageing bound of requests
is that of the manifest for all: it bounds how long users wait, and is no weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean
from typing import Any, Final

from plumage_bench.benches.drift.engine import CLIENTS, LOADS, POOLS, Played, Pool, Setting, play
from plumage_bench.harness import Context, Figure, Report, ResultTable
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.parallel import in_parallel

__all__ = ["run"]

REQUESTS: Final = 2000
_SHOWN: Final = 4  # settings of a load in the table
_Runs = Mapping[str, Sequence[Played]]  # by setting, a run for each seed


@dataclass(frozen=True, slots=True)
class _Judged:
    """One pool under one load. best: the fixed setting with the highest mean rate. ratio: ours ÷ best."""

    pool: str
    load: str
    ours: Sequence[Played]
    best: str
    ratio: PairedRatio

    @property
    def regret(self) -> float:
        return 1.0 - self.ratio.ratio


def run(context: Context) -> Report:
    """Options: pairs."""
    seeds = [context.seed + pair for pair in range(context.count("pairs", LEAST_PAIRS))]
    settings = {pool.label: [pool.ours, *pool.fixed(context.quick)] for pool in POOLS}
    same = {one: same_engine(one, each) for each in settings.values() for one in each}
    calls = [
        (one, load, REQUESTS, seed)
        for each in settings.values() for load in LOADS for one in each if same[one] is one for seed in seeds
    ]  # fmt: skip
    with context.progress("drift", len(calls)) as advance:
        played = dict(zip(calls, in_parallel(play, calls, advance), strict=True))
    found: dict[tuple[str, str], _Runs] = {
        (pool, load): {one.label: [played[same[one], load, REQUESTS, seed] for seed in seeds] for one in each}
        for pool, each in settings.items()
        for load in LOADS
    }
    judged = [judge(pool, load, found[pool.label, load]) for pool in POOLS for load in LOADS]
    data = {
        "runs": {
            f"{pool}, {load}": {label: [asdict(one) for one in each] for label, each in runs.items()}
            for (pool, load), runs in found.items()
        },
        "ours": {pool.label: pool.ours.ours().listed() for pool in POOLS},
    }
    return Report(closing(judged), [_table(judged), _leaders(found)], lambda figure: _plot(figure, judged), data)


def same_engine(setting: Setting, others: Sequence[Setting]) -> Setting:
    """The first of `others` with the same engine: a fixed setting may be what the manifest has. It is played once."""
    engine = setting.engine()
    return next(one for one in others if one.engine() == engine)


def judge(pool: Pool, load: str, runs: _Runs) -> _Judged:
    """Ours against the fixed setting that was best for this load."""
    fixed = {label: each for label, each in runs.items() if label != pool.ours.label}
    best = max(fixed, key=lambda label: _rate(fixed[label]))
    ours = runs[pool.ours.label]
    ratio = paired_ratio([one.rate for one in ours], [one.rate for one in fixed[best]])
    return _Judged(pool.label, load, ours, best, ratio)


def closing(judged: Sequence[_Judged]) -> dict[str, Figure]:
    """The closing line."""
    keys: dict[str, Figure] = {}
    for name, some in [("regret", judged), *_by_pool(judged).items()]:
        worst = max(some, key=lambda one: one.regret)
        keys |= {
            name: worst.regret,
            f"{name}_low": 1.0 - worst.ratio.high,
            f"{name}_high": 1.0 - worst.ratio.low,
            f"{name}_pairs": worst.ratio.pairs,
        }
    return keys | {f"regret_{one.pool}_{one.load}".replace(" ", "_"): one.regret for one in judged}


def _by_pool(judged: Sequence[_Judged]) -> dict[str, list[_Judged]]:
    names = {one.pool: f"regret_{one.pool}".replace(" ", "_") for one in judged}
    return {name: [one for one in judged if one.pool == pool] for pool, name in names.items()}


def _rate(runs: Sequence[Played]) -> float:
    return geometric_mean(one.rate for one in runs)


def _table(judged: Sequence[_Judged]) -> ResultTable:
    rows: list[tuple[Figure, ...]] = [
        (
            one.pool, one.load, round(_rate(one.ours)), round(fmean(run.hits for run in one.ours), 3),
            round(fmean(run.stored for run in one.ours)), one.best, str(one.ratio), round(one.regret, 3),
        )
        for one in judged
    ]  # fmt: skip
    return ResultTable(
        f"Ours and the best fixed setting in hindsight, {CLIENTS} clients",
        ("pool", "load", "tokens/s", "hit ratio", "blocks copied/s", "best fixed setting", "ours ÷ it", "regret"),
        rows,
        f"{REQUESTS:,} requests a run. The device is a model. A regret below 0: no fixed setting was as good.",
    )


def _leaders(found: Mapping[tuple[str, str], _Runs]) -> ResultTable:
    rows: list[tuple[Figure, ...]] = []
    for (pool, load), runs in found.items():
        ours = _rate(runs[pool])
        leaders = sorted(runs, key=lambda label: -_rate(runs[label]))[:_SHOWN]
        rows += [(pool, load, label, round(_rate(runs[label]) / ours, 3)) for label in leaders]
    return ResultTable("The fastest settings of each load", ("pool", "load", "setting", "÷ ours"), rows)


def _plot(figure: Any, judged: Sequence[_Judged]) -> None:
    axes = figure.subplots()
    pools = list(dict.fromkeys(one.pool for one in judged))
    width = 0.8 / len(pools)
    for index, pool in enumerate(pools):
        some = [one for one in judged if one.pool == pool]
        places = [place + (index + 0.5) * width - 0.4 for place in range(len(some))]
        ends = [[one.ratio.high - one.ratio.ratio for one in some], [one.ratio.ratio - one.ratio.low for one in some]]
        axes.bar(places, [one.regret for one in some], width, yerr=ends, capsize=3, label=pool)
    axes.axhline(0.05, color="grey", linestyle=":", label="target")
    axes.set(xticks=range(len(LOADS)), xticklabels=LOADS, ylabel="1 − ours ÷ the best fixed setting")
    axes.legend(fontsize="small")
