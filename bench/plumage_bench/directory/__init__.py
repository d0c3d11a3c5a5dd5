"""`plumage bench directory`: how late, how large and how slow to start the directory is.

- `lag_p99_ms`: from an engine's KV event leaving its socket to the chunk being matched in a router, through real
  agents, a real server and a router's sync, each a process of its own.
- `redis_bytes`: per (chunk, owner) entry in the server, the worst of the owner counts, log and hotness included; by the
  server's own account and, in the table, by its resident memory.
- `router_bytes`: per entry in a router's process at one owner a chunk; `cold_s`: until a router that knew nothing has
  all of them, the worst of the owner counts.
- `agent_us`: CPU of an agent per block event, sockets left out; `agent_process_us`: of one agent's whole process,
  beside one engine with a full cache that stores and drops 5,000 blocks a second together.
"""

from __future__ import annotations

import asyncio
from typing import Any

from plumage_bench.directory.lag import Lag, measure_lag
from plumage_bench.directory.size import Size, measure_size
from plumage_bench.event_cost import EventCost, event_cost
from plumage_bench.harness import Context, Report, ResultTable

__all__ = ["run"]

ENTRIES = 1_000_000
OWNERS = {1: 4, 4: 4, 32: 32}  # owners a chunk → replicas
RATE = 5_000


def run(context: Context) -> Report:
    seconds = 6.0 if context.quick else 30.0
    colds = 1 if context.quick else 3
    with context.progress("directory", len(OWNERS) + 2) as advance:
        sizes = []
        for owners, replicas in OWNERS.items():
            sizes.append(asyncio.run(measure_size(ENTRIES, owners, replicas, colds, context.seed)))
            advance(1)
        lag = measure_lag(RATE, seconds, context.seed)
        advance(1)
        alone = measure_lag(RATE // 2, seconds / 2, context.seed, number=1)
        advance(1)
    return _report(sizes, lag, alone, event_cost(8_000 if context.quick else 40_000, context.seed))


def _report(sizes: list[Size], lag: Lag, alone: Lag, cost: EventCost) -> Report:
    single = next(size for size in sizes if size.owners == 1)
    keys = {
        "lag_p99_ms": lag.percentile(99) * 1e3,
        "redis_bytes": max(size.server_bytes for size in sizes),
        "router_bytes": single.router_bytes,
        "cold_s": max(size.cold_s for size in sizes),
        "agent_us": cost.mean_us,
        "agent_process_us": alone.agent_micros,
    }
    data = {"lag_ms": [round(1e3 * value, 2) for value in lag.sorted[:: max(1, len(lag.sorted) // 1000)]]}
    return Report(
        keys, (_size_table(sizes), _lag_table([lag, alone], cost)), lambda figure: _draw(figure, sizes, lag), data
    )


def _size_table(sizes: list[Size]) -> ResultTable:
    columns = ("owners", "replicas", "entries", "server", "its log", "its heat", "its RSS", "router", "cold s")
    rows = [
        (
            size.owners, size.replicas, size.entries, size.server_bytes, size.log_bytes, size.heat_bytes,
            size.server_rss_bytes, size.router_bytes, size.cold_s,
        )
        for size in sizes
    ]  # fmt: skip
    notes = "bytes per (chunk, owner) entry; server: used_memory less an empty server's; router: growth of its RSS"
    return ResultTable("Size of the directory and a cold router", columns, rows, notes)


def _lag_table(lags: list[Lag], cost: EventCost) -> ResultTable:
    columns = (
        "engines", "stored/s", "chunks", "p50 ms", "p90 ms", "p99 ms", "max ms", "agent", "its events", "router",
    )  # fmt: skip
    rows = [
        (
            lag.engines, round(lag.rate), len(lag.sorted), *(lag.percentile(p) * 1e3 for p in (50, 90, 99, 100)),
            lag.agent_micros, cost.mean_us, lag.router_micros,
        )
        for lag in lags
    ]  # fmt: skip
    notes = (
        "blocks stored, and as many removed; agent, router: µs of CPU of the whole process per block event, idling "
        "included; its events: decoding, indexing and publishing alone"
    )
    return ResultTable("From an engine's event to a match in a router", columns, rows, notes)


def _draw(figure: Any, sizes: list[Size], lag: Lag) -> None:
    left, right = figure.subplots(1, 2)
    left.plot([1e3 * value for value in lag.sorted], [i / len(lag.sorted) for i in range(len(lag.sorted))])
    left.axvline(50, linestyle="--", color="grey", label="bound for p99")
    left.set(xlabel="ms from event to match", ylabel="share of chunks", title=f"{lag.rate:,.0f} blocks stored/s")
    left.legend()
    names = [str(size.owners) for size in sizes]
    bottom = [0.0] * len(sizes)
    for label, values in (
        ("snapshot", [size.server_bytes - size.log_bytes - size.heat_bytes for size in sizes]),
        ("log", [size.log_bytes for size in sizes]),
        ("hotness", [size.heat_bytes for size in sizes]),
    ):
        right.bar(names, values, bottom=bottom, label=label)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    right.axhline(40, linestyle="--", color="grey")
    right.set(xlabel="owners a chunk", ylabel="bytes per entry in the server", title="1,000,000 entries")
    right.legend()
