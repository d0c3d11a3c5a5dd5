"""What hints about agents' sessions gain where the caches hold a part of the live sessions. In virtual time.

Eight replicas serve sessions of twelve workflows (`workloads.workflows`), on the simulator's gpu preset, as the default
manifest deploys them. Sessions start for ten minutes; requests of the last 400 s count. Two sizes of the caches hold
a half and three fifths of the blocks that live sessions will use again (`held_share`, measured). Each contender adds
one hint to the default (`hinted_fleet`). Pairs have the same sessions and starting times.

`prefill_gain`: prompt tokens that requests waited for, the default ÷ pre-caching; its target is 1.45, the least that
the article reports of KVFlow (§2.6). What pre-caching computed before the calls is reported beside it. The other gains
are the same ratio for the other hints; `hints_best` names the largest that needs no future. `known_gain` has exact
knowledge of each pause: no learned prediction gives eviction more.

With host memory (`host`) a prefix that was evicted is copied up at its call. `loads_free` is the same with copies that
take no time: what a perfect prefetch from host memory could gain.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from statistics import fmean
from typing import Any, Final

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.ours import Ours
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.parallel import in_parallel
from plumage_bench.quantiles import quantile
from plumage_bench.virtual_time.fleet import FleetRun, Served, run_fleet
from plumage_bench.virtual_time.hinted_fleet import AffinePolicy, HintedHotness, HintedRouting, Hints
from plumage_bench.workloads.workflows import WorkflowSessions, WorkflowShape
from plumage_engine.simulator.engine.device import make_device
from plumage_engine.simulator.engine.settings import EngineSettings

__all__ = ["CONTENDERS", "SHAPE", "Contender", "Outcome", "engine", "held_share", "measure", "ours", "run"]

REPLICAS: Final = 8
SECONDS: Final = 600.0
COUNTED: Final = 200.0  # from then on
SHAPE: Final = WorkflowShape(rate=0.5, seconds=SECONDS)
CACHES: Final = (3072, 3584)  # blocks of each replica
HOST: Final = 4  # times the device's blocks
_FREE: Final = 1e18  # bytes a second


@dataclass(frozen=True, slots=True)
class Contender:
    """key: of its gain in the closing line. host: blocks of host memory, in device caches. loads_free: copies take no
    time."""

    key: str
    hints: Hints
    host: int = 0
    loads_free: bool = False


CONTENDERS: Final = (
    Contender("ours", Hints("default manifest")),
    Contender("session", Hints("session header", affinity="Session")),
    Contender("cache_key", Hints("prompt_cache_key", affinity="Agent")),
    Contender("tool_call", Hints("tool call kept", expects="ToolCall")),
    Contender("tool_call_1s", Hints("tool call kept, known 1 s later", expects="ToolCall", late=1.0)),
    Contender("tool_call_10s", Hints("tool call kept, known 10 s later", expects="ToolCall", late=10.0)),
    Contender("pause", Hints("pause learned by tool", expects="Learned")),
    Contender("prefill", Hints("pre-caching", precaches=True)),
    Contender("pause_prefill", Hints("pause learned, and pre-caching", expects="Learned", precaches=True)),
    Contender("known", Hints("pause known exactly", expects="Truth")),
    Contender("host", Hints("host memory"), host=HOST),
    Contender("loads_free", Hints("host memory, copies free"), host=HOST, loads_free=True),
)
QUICK: Final = ("ours", "session", "tool_call", "pause", "prefill", "host")
_NO_HINTS: Final = ("known", "host", "loads_free")


@dataclass(frozen=True, slots=True)
class Outcome:
    """hits: cached ÷ prompt tokens. waited: prompt tokens a request that were computed within it. before: tokens a
    request that pre-caching computed. ttft: mean and 95th percentile, seconds. held: `held_share`."""

    requests: int
    hits: float
    waited: float
    before: float
    ttft: float
    p95: float
    held: float


Found = Mapping[tuple[str, int, int], Outcome]


def run(context: Context) -> Report:
    """Options: pairs, contenders."""
    pairs = context.count("pairs", LEAST_PAIRS)
    named = context.some("contenders", [one.key for one in CONTENDERS], QUICK if context.quick else None)
    keys = ("ours", *(key for key in named if key != "ours"))
    caches = CACHES[-1:] if context.quick else CACHES
    seeds = [context.seed + offset for offset in range(pairs)]
    calls = [(key, cache, seed) for seed in seeds for cache in caches for key in keys]
    with context.progress("hints", len(calls)) as advance:
        found = dict(zip(calls, in_parallel(measure, calls, advance), strict=True))
    return _report(found, keys, caches, seeds)


def measure(key: str, cache: int, seed: int) -> Outcome:
    """One run of a contender."""
    [contender] = [one for one in CONTENDERS if one.key == key]
    source = WorkflowSessions(SHAPE, seed)
    made: list[HintedRouting] = []

    def make(*given: Any) -> HintedRouting:
        made.append(HintedRouting(*given, hints=contender.hints))
        return made[0]

    policy = ours(cache).routing_policy(random.Random(f"policy-{seed}"))
    if contender.hints.affinity:
        policy = AffinePolicy(policy)
    fleet = run_fleet([engine(contender, cache)] * REPLICAS, policy, source, seed=seed, until=SECONDS, make=make)
    return _sum_up(fleet, source, made[0].precomputed, cache)


def ours(cache: int, host: int = 0) -> Ours:
    """The default manifest, with caches of this size; host: blocks of host memory."""
    tier = {"engine.hostMemory": {}, "engine.simulator.hostBlocks": host} if host else {}
    return Ours({"engine.simulator.cacheBlocks": cache, **tier})


def engine(contender: Contender, cache: int) -> EngineSettings:
    """Each replica's."""
    device = make_device("gpu", pcie=_FREE) if contender.loads_free else None
    made = ours(cache, contender.host * cache).engine(device)
    if contender.hints.expects:
        made = replace(made, eviction=f"{HintedHotness.__module__}:{HintedHotness.__name__}", eviction_options={})
    return made


def _sum_up(fleet: FleetRun, source: WorkflowSessions, precomputed: int, blocks: int) -> Outcome:
    counted = [one for one in fleet.served if one.arrival.at >= COUNTED and not isnan(one.finished)]
    requests, prompts = len(counted), sum(one.arrival.prompt.tokens for one in counted)
    cached, ttft = sum(one.cached_tokens for one in counted), [one.ttft for one in counted]
    before = precomputed / len(fleet.served)  # over all of the time
    held = fmean(held_share(fleet, source, at, REPLICAS * blocks) for at in (300.0, 400.0, 500.0))
    return Outcome(
        requests, cached / prompts, (prompts - cached) / requests, before, fmean(ttft), quantile(ttft, 0.95), held
    )


def held_share(fleet: FleetRun, source: WorkflowSessions, at: float, blocks: int) -> float:
    """`blocks` ÷ the distinct blocks that running requests use then, or that a later call of its session will."""
    live: set[int] = set()
    for client, passed in _passed(fleet, at).items():
        calls, running = source.calls[client], isnan(passed[-1].finished) or passed[-1].finished > at
        latest = {calls[place].agent: place for place in range(len(passed))}
        for place in latest.values():
            prompt = calls[place].prompt.blocks
            later = any(one.prompt.blocks[: len(prompt)] == prompt for one in calls[len(passed) :])
            if later or (running and place == len(passed) - 1):
                live.update(prompt)
    return blocks / max(len(live), 1)


def _passed(fleet: FleetRun, at: float) -> Mapping[int, list[Served]]:
    """Each session's requests that had arrived then."""
    passed: dict[int, list[Served]] = {}
    for one in fleet.served:
        if one.arrival.at <= at:
            passed.setdefault(one.arrival.client, []).append(one)
    return passed


def _report(found: Found, keys: Sequence[str], caches: Sequence[int], seeds: Sequence[int]) -> Report:
    figures = ("waited", "ttft", "p95")
    gains = {
        (key, cache, figure): paired_ratio(
            *([getattr(found[one, cache, seed], figure) for seed in seeds] for one in ("ours", key))
        )
        for key in keys for cache in caches for figure in figures
    }  # fmt: skip
    last = caches[-1]
    closing: dict[str, Figure] = {}
    for key in keys[1:]:
        closing |= interval_keys(f"{key}_gain", gains[key, last, "waited"])
        closing |= interval_keys(f"{key}_ttft_gain", gains[key, last, "ttft"])
    product = [key for key in keys[1:] if key not in _NO_HINTS]
    if product:
        closing["hints_best"] = max(product, key=lambda key: gains[key, last, "waited"].ratio)
    for cache in caches:
        closing[f"held_share_{cache}"] = round(fmean(found["ours", cache, seed].held for seed in seeds), 3)
    tables = [_table(found, gains, keys, cache, seeds) for cache in caches]
    runs = [
        {"contender": key, "cache": cache, "seed": seed, **asdict(one)} for (key, cache, seed), one in found.items()
    ]
    data = {"runs": runs, "shape": asdict(SHAPE), "ours": {str(cache): ours(cache).listed() for cache in caches}}
    return Report(closing, tables, lambda figure: _plot(figure, gains, keys, caches), data)


Gains = Mapping[tuple[str, int, str], PairedRatio]


def _table(found: Found, gains: Gains, keys: Sequence[str], cache: int, seeds: Sequence[int]) -> ResultTable:
    rows: list[list[Figure]] = []
    for contender in CONTENDERS:
        if contender.key not in keys:
            continue
        runs = [found[contender.key, cache, seed] for seed in seeds]
        means = [fmean(getattr(one, name) for one in runs) for name in ("hits", "waited", "before", "ttft", "p95")]
        digits = (3, None, None, 3, 3)
        rows.append(
            [contender.hints.label, *(round(one, to) for one, to in zip(means, digits, strict=True)),
             *(str(gains[contender.key, cache, figure]) for figure in ("waited", "ttft", "p95"))]
        )  # fmt: skip
    held = fmean(found["ours", cache, seed].held for seed in seeds)
    return ResultTable(
        f"Hints about agents' sessions: caches of {cache:,} blocks hold {held:.2f} of the live sessions",
        (
            "contender", "hit ratio", "computed tokens a request", "… before it", "mean TTFT, s", "P95, s",
            "computed: default ÷ it", "mean TTFT", "P95",
        ),
        rows,
        f"{REPLICAS} replicas, virtual time, the gpu preset; {len(seeds)} pairs. A gain above 1 is better.",
    )  # fmt: skip


def _plot(figure: Any, gains: Gains, keys: Sequence[str], caches: Sequence[int]) -> None:
    axes = figure.subplots()
    shown = keys[1:]
    for offset, cache in enumerate(caches):
        ratios = [gains[key, cache, "waited"] for key in shown]
        axes.errorbar(
            [one.ratio for one in ratios],
            [place + 0.2 * offset for place in range(len(shown))],
            xerr=[[one.ratio - one.low for one in ratios], [one.high - one.ratio for one in ratios]],
            fmt="o",
            label=f"{cache:,} blocks",
        )
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set(yticks=range(len(shown)), yticklabels=shown, xlabel="computed prompt tokens, default ÷ with the hint")
    axes.legend(fontsize="small")
