"""`scale`: the cost of virtual time with 30 replicas and 10,000 requests of the multi-turn workload.

"30 replicas × 10,000 requests" means 10,000 requests in total here. `requests=300000` is the other meaning, 10,000 for
each replica.

The fleet is that of the other routing benchmarks: simulated engines with Hotness, LBGR for routing, the directory's
view between them, and the default load of a worker. There are three seeds. The first is served twice, and must give the
same outcomes to the last digit. A digest of them is printed, to compare runs of different machines or versions.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.routing.contenders import OURS
from plumage_bench.routing.scenario import Scenario, serve
from plumage_bench.virtual_time.fleet import Served
from plumage_bench.workloads import MultiturnShape

__all__ = ["REPLICAS", "REQUESTS", "Timed", "digest", "run", "scenario", "timed"]

REPLICAS, REQUESTS = 30, 10_000
_ROUNDS_A_CLIENT = 5  # 2, 4, 6 or 8
SEEDS = 3
_RATE_A_REPLICA = 3.0  # 12 requests a second on four workers, the default setting of `multiturn`
_LEAST, _MOST = 5 * _ROUNDS_A_CLIENT, 3_000_000  # requests


@dataclass(frozen=True, slots=True)
class Timed:
    """One run: its cost in seconds (wall clock and CPU), and its result. ttft: seconds of virtual time, in order.
    routed: requests by replica."""

    seed: int
    wall: float
    processor: float
    requests: int
    virtual: float
    digest: str
    ttft: Sequence[float]
    routed: Mapping[int, int]


def scenario(replicas: int = REPLICAS, requests: int = REQUESTS) -> Scenario:
    """As many concurrent clients as for 10,000 requests: with more, the conversations would not fit into any cache."""
    shape = MultiturnShape(clients=requests // _ROUNDS_A_CLIENT, at_once=REQUESTS // _ROUNDS_A_CLIENT)
    return Scenario(shape, _RATE_A_REPLICA * replicas, workers=replicas)


def digest(served: Sequence[Served]) -> str:
    """Of every outcome: the replica of each request, the times of its first and last token, and its cached tokens."""
    hashed = hashlib.sha256()
    for one in served:
        outcome = (one.arrival.client, one.arrival.at, one.ticket.slot, one.first_token, one.finished)
        hashed.update(repr((*outcome, one.cached_tokens)).encode())
    return hashed.hexdigest()


def timed(one: Scenario, seed: int) -> Timed:
    """Make the workload, serve it, and measure the cost."""
    started, own = perf_counter(), process_time()
    fleet = serve(OURS, one, seed)
    wall, processor = perf_counter() - started, process_time() - own
    ttft = sorted(one.ttft for one in fleet.served)
    routed = Counter(one.ticket.slot for one in fleet.served)
    return Timed(seed, wall, processor, len(fleet.served), fleet.seconds, digest(fleet.served), ttft, routed)


def run(context: Context) -> Report:
    """wall_s, cpu_s: medians over the seeds. distinct_outcomes: of the runs with the first seed; must be 1."""
    one = scenario(requests=_requests(context))
    seeds = [context.seed + offset for offset in range(SEEDS)] + [context.seed] * (not context.quick)
    with context.progress("scale", len(seeds)) as advance:
        runs = []
        for seed in seeds:
            runs.append(timed(one, seed))
            advance(1)
    first, *_ = by_seed = runs[:SEEDS]
    keys = {
        "wall_s": round(median(one.wall for one in by_seed), 2),
        "cpu_s": round(median(one.processor for one in by_seed), 2),
        "requests": first.requests,
        "runs": len(runs),
        "distinct_outcomes": len({one.digest for one in runs if one.seed == first.seed}),
    }
    data = [{"seed": one.seed, "wall_s": one.wall, "cpu_s": one.processor, "digest": one.digest} for one in runs]
    return Report(keys, [_table(runs)], lambda figure: _plot(figure, first), {"runs": data})


def _requests(context: Context) -> int:
    given = context.options.get("requests", str(REQUESTS))
    if not (given.isascii() and given.isdigit() and _LEAST <= int(given) <= _MOST):
        raise ConfigurationError(f"requests={given}: it must be a whole number from {_LEAST} to {_MOST}")
    return int(given)


def _table(runs: Sequence[Timed]) -> ResultTable:
    rows: list[list[int | float | str]] = [
        [
            str(one.seed),
            one.digest[:16],
            one.requests,
            round(one.virtual, 1),
            round(one.wall, 2),
            round(one.processor, 2),
        ]
        for one in runs
    ]
    return ResultTable(
        f"{REPLICAS} replicas, multi-turn, virtual time",
        ("seed", "digest of the outcomes", "requests", "virtual s", "wall s", "CPU s"),
        rows,
        "One process, one core. Runs of one seed must have one digest.",
    )


def _plot(figure: Any, run: Timed) -> None:
    """The time to first token, and the requests of each replica."""
    soon, whom = figure.subplots(1, 2)
    shares = [(number + 1) / len(run.ttft) for number in range(len(run.ttft))]
    soon.plot(run.ttft, shares)
    soon.set(xscale="log", xlabel="time to first token, virtual s", ylabel="share of the requests")
    whom.bar(list(run.routed), list(run.routed.values()))
    whom.set(xlabel="replica", ylabel="requests")
    figure.suptitle(f"{run.requests} requests in {run.wall:.1f} s: {run.virtual:.0f} s of virtual time")
