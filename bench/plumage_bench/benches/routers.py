"""`routers`: three routers beside one that sees every request, in virtual time.

Both have the default manifest's policy and the same requests. Clients are spread over the three as behind a Service.
Two workloads: `gsp` (prefixes that many clients share) and `multiturn` (conversations). Each seed has four runs:

- *one*: one router, whose directory is always there;
- *three*: three routers, whose directory is always there;
- *killed*: three routers; midway the directory is away for 30 s and comes back empty;
- *joined*: two routers; midway a third one starts, and all clients connect again.

`three_over_one_p95`: P95 of the time to first token of all requests, *killed* ÷ *one*, of the workload where it is
greater. `three_over_one_hits`: the hit ratio likewise, of the workload where it is less. `shared_…` are the same of
*three*, `after_p95` is of the requests after the outage, and `joined_p95` is of the requests that the new router routed
in its first minute ÷ those of the same minute under one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.parallel import in_parallel
from plumage_bench.quantiles import quantile
from plumage_bench.routing.contenders import OURS
from plumage_bench.routing.scenario import Scenario
from plumage_bench.virtual_time.routers import ALWAYS, Outage, Routed, Spread, run_routers
from plumage_bench.workloads import GspShape, MultiturnShape

__all__ = ["CASES", "Minutes", "run", "sum_up"]

ROUTERS: Final = 3
CONNECTIONS: Final = 96
AWAY: Final = 30.0  # seconds: a pod of the directory starts again
SETTLED: Final = 10.0  # seconds after the outage, from which requests count as after it
FIRST: Final = 60.0  # seconds of a new router
SEEDS: Final = 10
CASES: Final = ("one", "three", "killed", "joined")
_SEED_STEP: Final = 100  # between the policies of two seeds


@dataclass(frozen=True, slots=True)
class Workload:
    """midway: seconds from the start until the directory is killed, or the third router starts."""

    scenario: Scenario
    midway: float


WORKLOADS: Final = {
    "gsp": Workload(Scenario(GspShape(), 8.0), 200.0),
    "multiturn": Workload(Scenario(MultiturnShape(clients=384, at_once=128), 12.0), 70.0),
}


@dataclass(frozen=True, slots=True)
class Minutes:
    """The figures of one run. Times are seconds. after: of the requests after the outage. first: of those in the first
    minute after `midway`, by the last router, or by the only one. share: of the requests of that minute, the last
    router's."""

    p50: float
    p95: float
    hits: float
    after: float
    first: float
    share: float


def run(context: Context) -> Report:
    """Options: pairs."""
    pairs = context.count("pairs", LEAST_PAIRS if context.quick else SEEDS)
    seeds = [context.seed + offset for offset in range(pairs)]
    calls = [(name, case, seed) for seed in seeds for name in WORKLOADS for case in CASES]
    with context.progress("routers", len(calls)) as advance:
        found = dict(zip(calls, in_parallel(serve, calls, advance), strict=True))
    return _report(found, seeds)


def serve(name: str, case: str, seed: int) -> Minutes:
    """One run."""
    workload = WORKLOADS[name]
    scenario, midway = workload.scenario, workload.midway
    routers, joins = 1 if case == "one" else ROUTERS, midway if case == "joined" else 0.0
    policies = [OURS.make(_SEED_STEP * seed + index, scenario.shape.block_size) for index in range(routers)]
    outage = Outage(midway, midway + AWAY) if case == "killed" else ALWAYS
    spread = Spread(routers, CONNECTIONS, seed, joins)
    engines = scenario.engines(OURS.eviction)
    requests = run_routers(engines, policies, scenario.source(seed), spread, seed=seed, outage=outage, joins=joins)
    return sum_up(requests, midway, routers - 1)


def sum_up(requests: Sequence[Routed], midway: float, last: int) -> Minutes:
    """last: the number of the router that may have started midway."""
    ttft = [one.served.ttft for one in requests]
    prompts = sum(one.served.arrival.prompt.tokens for one in requests)
    after = midway + AWAY + SETTLED
    minute = [one for one in requests if midway <= one.served.arrival.at < midway + FIRST]
    first = [one.served.ttft for one in minute if one.router == last]
    return Minutes(
        quantile(ttft, 0.5),
        quantile(ttft, 0.95),
        sum(one.served.cached_tokens for one in requests) / prompts,
        quantile([one.served.ttft for one in requests if one.served.arrival.at >= after], 0.95),
        quantile(first, 0.95),
        len(first) / len(minute),
    )


Found = Mapping[tuple[str, str, int], Minutes]


def _report(found: Found, seeds: Sequence[int]) -> Report:
    def ratio(name: str, case: str, of: Callable[[Minutes], float]) -> PairedRatio:
        return paired_ratio(
            [of(found[name, case, seed]) for seed in seeds], [of(found[name, "one", seed]) for seed in seeds]
        )

    def worst(case: str, of: Callable[[Minutes], float], choose: Callable[..., PairedRatio] = max) -> PairedRatio:
        return choose((ratio(name, case, of) for name in WORKLOADS), key=lambda one: one.ratio)

    def p95(one: Minutes) -> float:
        return one.p95

    def hits(one: Minutes) -> float:
        return one.hits

    share = sum(found[name, "joined", seed].share for name in WORKLOADS for seed in seeds) / (
        len(WORKLOADS) * len(seeds)
    )
    keys: dict[str, Figure] = {
        **interval_keys("three_over_one_p95", worst("killed", p95)),
        **interval_keys("three_over_one_hits", worst("killed", hits, min)),
        **interval_keys("shared_p95", worst("three", p95)),
        **interval_keys("shared_hits", worst("three", hits, min)),
        **interval_keys("after_p95", worst("killed", lambda one: one.after)),
        **interval_keys("joined_p95", worst("joined", lambda one: one.first)),
        "joined_share": round(share, 3),
    }
    rows = [
        [name, case, *(round(_mean(found, name, case, seeds, of), 3) for of in (lambda one: one.p50, p95, hits)),
         *(str(ratio(name, case, of)) for of in (p95, hits))]
        for name in WORKLOADS for case in CASES
    ]  # fmt: skip
    table = ResultTable(
        "Three routers and one, the same requests, virtual time",
        ("workload", "routers", "P50 TTFT, s", "P95 TTFT, s", "hit ratio", "P95 ÷ one's", "hit ratio ÷ one's"),
        rows,
        f"Means over {len(seeds)} seeds. killed: the directory is away for {AWAY:.0f} s. joined: the third router "
        f"starts midway; of the next minute's requests it gets {share:.0%}.",
    )
    data = [
        {"workload": name, "routers": case, "seed": seed, "p50": one.p50, "p95": one.p95, "hits": one.hits,
         "after": one.after, "first": one.first, "share": one.share}
        for (name, case, seed), one in found.items()
    ]  # fmt: skip
    return Report(keys, [table], lambda figure: _plot(figure, found, seeds), {"runs": data})


def _mean(found: Found, name: str, case: str, seeds: Sequence[int], of: Callable[[Minutes], float]) -> float:
    return sum(of(found[name, case, seed]) for seed in seeds) / len(seeds)


def _plot(figure: Any, found: Found, seeds: Sequence[int]) -> None:
    panels = figure.subplots(1, len(WORKLOADS))
    for panel, name in zip(panels, WORKLOADS, strict=True):
        for place, case in enumerate(CASES[1:]):
            ratios = [found[name, case, seed].p95 / found[name, "one", seed].p95 for seed in seeds]
            panel.plot([place] * len(ratios), ratios, "o", label=case)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(CASES) - 1), CASES[1:])
        panel.set(title=name, ylabel="P95 TTFT ÷ that of one router")
