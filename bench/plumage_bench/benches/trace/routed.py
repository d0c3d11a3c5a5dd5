"""Eight workers serve the trace in virtual time, at its own arrival times, with each routing policy.

The routing contenders and their settings are those of the other routing benchmarks. Each of them runs with leaf-LRU and
with Plumage's eviction, so that routing alone is compared.

Prompts consist of their full blocks of 512 tokens. Answers are decoded, but their blocks have no names, since the trace
has none. So a next turn finds its history only as far as an earlier prompt reached. If the workers could not keep up
with cold caches, all arrival times are stretched by one factor, which is computed from the trace and the device before
any policy runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from math import ceil
from statistics import fmean, pstdev

from plumage_bench.benches.trace.mooncake import BLOCK
from plumage_bench.benches.trace.processes import Trace
from plumage_bench.ours import Ours
from plumage_bench.quantiles import quantile
from plumage_bench.routing.contenders import BASELINES, OURS, Contender, equal
from plumage_bench.virtual_time.fleet import FleetRun, Served, run_fleet
from plumage_bench.workloads import Prompt, Timed
from plumage_engine.simulator.engine.device import Device

__all__ = ["CACHE_BLOCKS", "COLD_LOAD", "WORKERS", "Fleet", "Routed", "fleets", "mean", "route", "stretch"]

WORKERS = 8
CACHE_BLOCKS = 1_000
COLD_LOAD = 0.6
"""Share of the workers' time for prefill with cold caches. The rest is for decoding and for bursts."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One run."""

    contender: Contender
    seed: int
    stretch: float

    @property
    def label(self) -> str:
        return self.contender.label


@dataclass(frozen=True, slots=True)
class Routed:
    """hit_ratio: cached ÷ all prompt tokens. ttft, latency: seconds at P50, P95, P99. balance: coefficient of variation
    of the tokens that a worker computed. muv: mean over workers of the standard deviation over time of their KV
    usage."""

    hit_ratio: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    latency_p50: float
    latency_p95: float
    latency_p99: float
    balance: float
    muv: float


def fleets(seeds: Sequence[int], factor: float) -> list[Fleet]:
    """Every routing policy with each eviction, ours first."""
    return [Fleet(contender, seed, factor) for contender in equal((OURS, *BASELINES)) for seed in seeds]


def stretch(trace: Trace) -> float:
    """The factor of arrival times with which prefill takes `COLD_LOAD` of the workers' time; at least 1."""
    seconds = max(trace[-1].at - trace[0].at, 1.0)
    device = worker("Lru").engine().device
    cold = sum(_prefill_seconds(device, request.input_tokens) for request in trace)
    return max(1.0, ceil(10 * cold / (seconds * WORKERS * COLD_LOAD)) / 10)


def _prefill_seconds(device: Device, tokens: int) -> float:
    return (tokens * device.row + tokens * tokens / 2 * device.pair) * device.time_scale


def worker(eviction: str) -> Ours:
    """A worker of the fleet: the default manifest's, with the trace's blocks and a cache for a part of the trace."""
    return Ours(
        {
            "engine.simulator.blockSize": BLOCK,
            "engine.simulator.cacheBlocks": CACHE_BLOCKS,
            "engine.eviction.policy": eviction,
        }
    )


def route(trace: Trace, fleet: Fleet) -> Routed:
    """Serve the whole trace."""
    arrivals = [
        (
            (request.at - trace[0].at) * fleet.stretch,
            Prompt(request.input_tokens, request.full_blocks, max(1, request.output_tokens), index),
        )
        for index, request in enumerate(trace)
    ]
    policy = fleet.contender.make(fleet.seed, BLOCK)
    return _figures(
        run_fleet([worker(fleet.contender.eviction).engine()] * WORKERS, policy, Timed(arrivals), seed=fleet.seed)
    )


def _figures(run: FleetRun) -> Routed:
    ttft = sorted(served.ttft for served in run.served)
    latency = sorted(served.latency for served in run.served)
    hit = sum(served.cached_tokens for served in run.served) / sum(
        served.arrival.prompt.tokens for served in run.served
    )
    work = [0.0] * WORKERS
    for served in run.served:
        work[served.ticket.slot] += _computed(served)
    at = (0.50, 0.95, 0.99)
    times = [quantile(ordered, q) for ordered in (ttft, latency) for q in at]
    muv = fmean(worker.muv for worker in run.workers)
    figures = [hit, *times, pstdev(work) / fmean(work), muv]
    return Routed(*figures)


def _computed(served: Served) -> float:
    prompt = served.arrival.prompt
    return prompt.tokens - served.cached_tokens + prompt.output_tokens


def mean(runs: Sequence[Routed]) -> Routed:
    """The mean over seeds of each field."""
    columns = zip(*(astuple(run) for run in runs), strict=True)
    return Routed(**{field.name: fmean(column) for field, column in zip(fields(Routed), columns, strict=True)})
