"""`autoscale`: a pool that follows its load by each metric, up and down, in virtual time. For the hit ratio a replica
must be added only where the miss-ratio curve predicts that its cache helps.

Engines are small (an eighth of the stated device's speed). The rules are those of `plumage.autoscaling` with the
manifest's default behaviour, but with a shorter window for scaling down. The load is low, high, low. For the hit ratio
the rate is always low and the shared prefixes change: many groups that fit into a larger fleet, then few. A second case
has prompts that share nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumage.api.v1alpha1.autoscaling import AutoscalingSpec
from plumage.autoscaling import Autoscaler, coldest_first
from plumage_bench.harness import Context, Figure, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.routing.contenders import OURS
from plumage_bench.virtual_time.elastic import ElasticFleet, Look
from plumage_bench.workloads.arrivals import Arrival
from plumage_bench.workloads.prompts import BlockNames, Prompt
from plumage_engine.simulator.engine.device import make_device
from plumage_engine.simulator.engine.settings import EngineSettings

__all__ = ["CASES", "Case", "Phase", "arrivals", "engine", "follow", "run"]

INTERVAL = 15.0
BLOCK = 16
CACHE_TOKENS = 40_000  # tokens of a replica's cache
MOST = 8


@dataclass(frozen=True, slots=True)
class Phase:
    """seconds long, with `rate` requests a second. groups: each prompt shares 7/8 of its tokens with its group; 0 for
    prompts that share nothing."""

    seconds: float
    rate: float
    groups: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """metric: as in a manifest. rises: whether the high load should add replicas."""

    name: str
    metric: Mapping[str, Any]
    phases: tuple[Phase, ...]
    rises: bool = True
    least: int = 1
    prompt_tokens: int = 2048


def _load(name: str, **target: int) -> Case:
    phases = (Phase(300, 0.1), Phase(600, 1.6), Phase(900, 0.1))
    return Case(name, {"type": name, **target}, phases)


_HITS = {"type": "CacheHitRatio", "targetPercent": 60}
CASES = (
    _load("TotalTokensPerSecond", target=400),
    _load("TimeToFirstToken", targetMilliseconds=6000),
    _load("QueueWait", targetMilliseconds=1000),
    _load("KvCacheUsage", targetPercent=25),
    _load("RequestsInFlight", target=4),
    Case("CacheHitRatio, the curve says yes", _HITS, (Phase(1500, 1.0, 64), Phase(1500, 1.0, 6)), least=2),
    Case("CacheHitRatio, the curve says no", _HITS, (Phase(1500, 0.5, 0),), rises=False, least=2),
)


REPLICA = Ours(
    {
        "engine.simulator.blockSize": BLOCK,
        "engine.simulator.cacheBlocks": CACHE_TOKENS // BLOCK,
        "engine.simulator.maxNumSeqs": 8,
    }
)
DEVICE = make_device("gpu", time_scale=8.0)


def engine() -> EngineSettings:
    """A replica: an eighth of the stated device's speed, a cache of about twenty prompts, eight requests at once."""
    return REPLICA.engine(DEVICE)


def arrivals(phases: Sequence[Phase], tokens: int, seed: int, *, zipf: float = 0.0) -> Iterator[Arrival]:
    """Poisson arrivals, phase after phase. zipf: exponent of the groups' popularity; 0 for equal popularity."""
    rng = random.Random(f"autoscale-{seed}")
    names, now, began, client = BlockNames(rng, BLOCK), 0.0, 0.0, 0
    for phase in phases:
        prefixes = [names.stretch(tokens * 7 // 8) for _ in range(phase.groups)]
        weights = [1.0 / (place + 1) ** zipf for place in range(phase.groups)]
        now = began
        while (now := now + rng.expovariate(phase.rate)) < began + phase.seconds:
            group = rng.choices(range(phase.groups), weights)[0] if prefixes else 0
            blocks = names.extend(prefixes[group], tokens) if prefixes else names.stretch(tokens)
            yield Arrival(now, Prompt(tokens, blocks, 32, group), client)
            client += 1
        began += phase.seconds


def follow(case: Case, seed: int, scale: float) -> list[Look]:
    """One run under the autoscaler. scale: factor of the phases' lengths."""
    phases = [Phase(phase.seconds * scale, phase.rate, phase.groups) for phase in case.phases]
    until = sum(phase.seconds for phase in phases)
    spec = AutoscalingSpec.model_validate(
        {
            "minReplicas": case.least,
            "maxReplicas": MOST,
            "metrics": [case.metric],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
        }
    )
    fleet = ElasticFleet(engine(), OURS.make(seed, BLOCK), case.least, seed=seed)
    scaler = Autoscaler()

    def look(now: float) -> None:
        decision = scaler.decide(spec, fleet.load(now), now)
        if decision.changes:
            scaler.scaled(decision.wanted, decision.replicas, now)
            fleet.resize(decision.replicas, leaving=[int(name) for name in coldest_first(fleet.cache_hotness())])

    fleet.every(INTERVAL, until, look)
    fleet.serve(arrivals(phases, case.prompt_tokens, seed), until)
    return fleet.looks


def run(context: Context) -> Report:
    """right: in how many of `cases` the pool grew and shrank as expected."""
    scale = 0.6 if context.quick else 1.0
    runs: dict[str, list[Look]] = {}
    with context.progress("autoscale", len(CASES)) as advance:
        for case in CASES:
            runs[case.name] = follow(case, context.seed, scale)
            advance(1)
    rows = [_row(case, runs[case.name]) for case in CASES]
    table = ResultTable(
        "One pool under its autoscaler, virtual time",
        ("metric", "replicas at first", "most", "at last", "hit ratio at the most", "to be added", "as it should"),
        rows,
        f"Bounds {CASES[0].least} (hit ratio: 2) and {MOST}; a look each {INTERVAL:.0f} s.",
    )
    keys: dict[str, Figure] = {"cases": len(CASES), "right": sum(row[-1] == "yes" for row in rows)}
    data = {name: [[one.at, one.replicas, one.wanted, one.hit_ratio] for one in looks] for name, looks in runs.items()}
    return Report(keys, [table], lambda figure: _plot(figure, runs), {"runs": data})


def _row(case: Case, looks: Sequence[Look]) -> list[Figure]:
    most = max(looks, key=lambda look: look.replicas)
    first, last = looks[0].replicas, looks[-1].replicas
    right = most.replicas > first and last < most.replicas if case.rises else most.replicas == first
    ratio = max((look.hit_ratio or 0.0) for look in looks if look.replicas == most.replicas)
    return [
        case.name,
        first,
        most.replicas,
        last,
        round(ratio, 3),
        "yes" if case.rises else "no",
        "yes" if right else "no",
    ]


def _plot(figure: Any, runs: Mapping[str, Sequence[Look]]) -> None:
    panels = figure.subplots(len(runs), 1, sharex=True)
    for panel, (name, looks) in zip(panels, runs.items(), strict=True):
        panel.step([look.at for look in looks], [look.replicas for look in looks], where="post")
        panel.set(title=name, ylabel="replicas", ylim=(0, MOST + 1))
    panels[-1].set(xlabel="virtual seconds")
    figure.set_size_inches(8, 2 * len(runs))
