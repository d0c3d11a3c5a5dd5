"""`plumage bench directory`: the delay, the size and the cold start of the directory.
- `lag_p99_ms`: from the time when an engine's KV event leaves its socket until a router can match the chunk. It runs
  through real agents, a real server and a router's sync, each in its own process.
- `redis_bytes`: bytes in the server for each (chunk, owner) entry, the largest of all owner counts, with log and
  hotness; by the server's own figure and, in the table, by its resident memory.
- `router_bytes`: bytes in a router's process for each entry with one owner a chunk. `cold_s`: seconds until a new
  router has all entries, the longest of all owner counts.
- `agent_us`: CPU time of an agent for each block event, without sockets. `agent_process_us`: of one agent's whole
  process, beside one engine with a full cache that stores and drops 5,000 blocks a second together.

Lags and CPU times are medians over the seeds; bytes in the server and cold starts are the worst of all seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from plumage_bench.benches.directory.event_cost import EventCost, event_cost
from plumage_bench.benches.directory.lag import Lag, measure_lag
from plumage_bench.benches.directory.size import Size, measure_size
from plumage_bench.harness import Context, Report, ResultTable

__all__ = ["run"]

ENTRIES = 1_000_000
OWNERS = {1: 4, 4: 4, 32: 32}  # owners a chunk → replicas
RATE = 5_000
SEEDS, SEEDS_QUICK = 3, 2
SECONDS, SECONDS_QUICK = 10.0, 2.5  # seconds of the event load, for each seed

Sizes = list[tuple[int, Size]]  # with their seeds


def run(context: Context) -> Report:
    seeds = [context.seed + offset for offset in range(SEEDS_QUICK if context.quick else SEEDS)]
    seconds = SECONDS_QUICK if context.quick else SECONDS
    fills = list(_fills(seeds, quick=context.quick))
    with context.progress("directory", len(fills) + 2) as advance:
        sizes: Sizes = []
        for owners, seed in fills:
            sizes.append((seed, asyncio.run(measure_size(ENTRIES, owners, OWNERS[owners], 1, seed))))
            advance(1)
        lag = measure_lag(RATE, seconds, seeds)
        advance(1)
        alone = measure_lag(RATE // 2, 0.6 * seconds, seeds, number=1)
        advance(1)
    return _report(sizes, lag, alone, [event_cost(4_000 if context.quick else 20_000, seed) for seed in seeds])


def _fills(seeds: Sequence[int], *, quick: bool) -> Iterator[tuple[int, int]]:
    """The pairs of owners a chunk and seed. A quick run uses every seed with one owner a chunk, for the bytes in the
    router; the other owner counts alternate with the seeds."""
    for turn, owners in enumerate(OWNERS):
        for seed in seeds if owners == 1 or not quick else [seeds[turn % len(seeds)]]:
            yield owners, seed


def _report(sizes: Sizes, lag: Lag, alone: Lag, costs: Sequence[EventCost]) -> Report:
    keys = {
        "lag_p99_ms": lag.percentile(99) * 1e3,
        "redis_bytes": max(size.server_bytes for _, size in sizes),
        "router_bytes": median(size.router_bytes for _, size in sizes if size.owners == 1),
        "cold_s": max(size.cold_s for _, size in sizes),
        "agent_us": median(cost.mean_us for cost in costs),
        "agent_process_us": alone.agent_micros,
    }
    data = {
        "lag_ms": [round(1e3 * value, 2) for value in lag.sorted[:: max(1, len(lag.sorted) // 1000)]],
        "by_seed": [
            {"seed": one.seed, "lag_p99_ms": one.percentile(99) * 1e3, "agent_process_us": single.agent_micros}
            for one, single in zip(lag.by_seed, alone.by_seed, strict=True)
        ],
    }
    tables = (_size_table(sizes), _lag_table([lag, alone], keys["agent_us"]))
    return Report(keys, tables, lambda figure: _draw(figure, [size for _, size in sizes], lag), data)


def _size_table(sizes: Sizes) -> ResultTable:
    columns = (
        "owners",
        "replicas",
        "seed",
        "entries",
        "server",
        "its log",
        "its hotness",
        "its RSS",
        "router",
        "cold s",
    )
    rows = [
        (
            size.owners, size.replicas, seed, size.entries, size.server_bytes, size.log_bytes, size.hotness_bytes,
            size.server_rss_bytes, size.router_bytes, size.cold_s,
        )
        for seed, size in sizes
    ]  # fmt: skip
    notes = "bytes per (chunk, owner) entry; server: used_memory less an empty server's; router: growth of its RSS"
    return ResultTable("Size of the directory and a cold router", columns, rows, notes)


def _lag_table(lags: list[Lag], event_micros: float) -> ResultTable:
    columns = (
        "engines", "stored/s", "chunks", "p50 ms", "p90 ms", "p99 ms", "max ms", "agent", "its events", "router",
    )  # fmt: skip
    rows = [
        (
            lag.engines, round(lag.rate), len(lag.sorted), *(lag.percentile(p) * 1e3 for p in (50, 90, 99)),
            lag.sorted[-1] * 1e3, lag.agent_micros, event_micros, lag.router_micros,
        )
        for lag in lags
    ]  # fmt: skip
    notes = (
        "blocks stored, and as many removed; percentiles and CPU are medians over the seeds; agent, router: µs of CPU "
        "of the whole process per block event, with idle work; its events: only decoding, indexing and publishing"
    )
    return ResultTable("From an engine's event to a match in a router", columns, rows, notes)


def _draw(figure: Any, sizes: list[Size], lag: Lag) -> None:
    left, right = figure.subplots(1, 2)
    left.plot([1e3 * value for value in lag.sorted], [i / len(lag.sorted) for i in range(len(lag.sorted))])
    left.axvline(50, linestyle="--", color="grey", label="bound for p99")
    left.set(xlabel="ms from event to match", ylabel="share of chunks", title=f"{lag.rate:,.0f} blocks stored/s")
    left.legend()
    sizes = list({size.owners: size for size in sizes}.values())
    names = [str(size.owners) for size in sizes]
    bottom = [0.0] * len(sizes)
    for label, values in (
        ("snapshot", [size.server_bytes - size.log_bytes - size.hotness_bytes for size in sizes]),
        ("log", [size.log_bytes for size in sizes]),
        ("hotness", [size.hotness_bytes for size in sizes]),
    ):
        right.bar(names, values, bottom=bottom, label=label)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    right.axhline(40, linestyle="--", color="grey")
    right.set(xlabel="owners a chunk", ylabel="bytes per entry in the server", title="1,000,000 entries")
    right.legend()
