"""What one router on one core carries, and what it adds to a request's latency.

The router has a core of its own; the compiled mock engine (four replicas), the compiled load generator, the
directory's server and the mock's agents share another. Prompts of 8 KB in six messages, 75 % of the text shared over 32
prefixes; the rest is new in every request. Each answered prompt becomes directory events as it would behind real
engines, so the mirror is kept up under load. The same load straight to the mock is printed beside, and round robin
without a directory.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.router.prompts import PREFIXES
from plumage_bench.router.rig import Drive, Rig

__all__ = ["run"]

MESSAGES = (6, 1, 20)
CONNECTIONS = 64
LOW_RATE = 100  # requests a second at which the added latency is taken


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds of each measurement; `repeats`: paired rounds, each with a seed of its own."""

    full_load: float
    low_load: float
    repeats: int


FULL = Plan(full_load=6.0, low_load=20.0, repeats=5)
QUICK = Plan(full_load=2.0, low_load=5.0, repeats=2)


def run(context: Context) -> Report:
    """ConfigurationError without a C compiler or a second core."""
    if len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError("bench router needs two cores: one for the router, one for everything else")
    plan = QUICK if context.quick else FULL
    with Rig(context.out / "router-rig", context.seed, MESSAGES) as rig:
        rig.start()
        steps = plan.repeats * (len(MESSAGES) + 4)
        with context.progress("router", steps) as advance:
            rounds = [_round(rig, plan, context.seed * 1000 + n, advance) for n in range(plan.repeats)]
        status = rig.status()
    return _report(rounds, status)


def _round(rig: Rig, plan: Plan, seed: int, advance: Any) -> dict[str, Drive]:
    """Every measurement once, so that each round compares like with like."""
    found: dict[str, Drive] = {}

    def take(name: str, target: str, messages: int, seconds: float, rate: float) -> None:
        found[name] = rig.drive(target, messages, seconds=seconds, rate=rate, connections=CONNECTIONS, seed=seed)
        advance(1)

    take("direct", "mock", 6, plan.full_load, 0)
    take("round robin", "plain", 6, plan.full_load, 0)
    for messages in MESSAGES:
        rig.drive("router", messages, seconds=0.5, rate=0, connections=CONNECTIONS, seed=seed + 500)
        take(f"LBGR, {messages}", "router", messages, plan.full_load, 0)
    rig.settle()
    take("low direct", "mock", 6, plan.low_load, LOW_RATE)
    take("low LBGR", "router", 6, plan.low_load, LOW_RATE)
    return found


def _report(rounds: list[dict[str, Drive]], status: Mapping[str, Any]) -> Report:
    added_p50 = statistics.median(r["low LBGR"].p50 - r["low direct"].p50 for r in rounds)
    added_p99 = statistics.median(r["low LBGR"].p99 - r["low direct"].p99 for r in rounds)
    rps = statistics.median(r["LBGR, 6"].rate for r in rounds)
    totals = status["totals"]
    keys = {"rps_8k": round(rps, 1), "added_p99_ms": added_p99 / 1000, "added_p50_ms": added_p50 / 1000}
    return Report(
        keys=keys,
        tables=(_load_table(rounds, totals), _latency_table(rounds, added_p50, added_p99)),
        plot=lambda figure: _plot(figure, rounds),
        data={"rounds": [{name: drive.document() for name, drive in r.items()} for r in rounds], "status": totals},
    )


def _load_table(rounds: list[dict[str, Drive]], totals: Mapping[str, Any]) -> ResultTable:
    names = ["direct", "round robin", *(f"LBGR, {messages}" for messages in MESSAGES)]
    shown = {"direct": "direct to the mock", "round robin": "round robin, 6 messages, no directory"}
    rows = [
        (
            shown.get(name, f"{name} message{'s' if name != 'LBGR, 1' else ''}"),
            round(statistics.median(r[name].rate for r in rounds)),
            round(min(r[name].rate for r in rounds)),
            round(statistics.median(r[name].cpu_micros for r in rounds), 1),
            round(statistics.median(r[name].p50 for r in rounds)),
            round(statistics.median(r[name].p99 for r in rounds)),
        )
        for name in names
    ]
    decision = totals["decisionMeanMicroseconds"]
    hits = f"{totals['hitRatio']:.3f}" if totals["hitRatio"] is not None else "unknown"
    return ResultTable(
        f"Full load: {CONNECTIONS} connections, 8 KB prompts, 75 % shared over {PREFIXES} prefixes, 4 replicas",
        ("", "req/s, median", "req/s, least", "router CPU µs/req", "p50 µs", "p99 µs"),
        rows,
        notes=(
            f"Median of {len(rounds)} rounds. A decision took {decision} µs on average (read to choose), hits {hits}. "
            "The mock answers at once, so latencies here are queues."
        ),
    )


def _latency_table(rounds: list[dict[str, Drive]], added_p50: float, added_p99: float) -> ResultTable:
    def median(name: str, field: str) -> float:
        found: float = statistics.median(getattr(r[name], field) for r in rounds)
        return round(found, 1)

    rows = [
        ("direct to the mock", median("low direct", "p50"), median("low direct", "p99")),
        ("LBGR, 6 messages", median("low LBGR", "p50"), median("low LBGR", "p99")),
        ("added", round(added_p50, 1), round(added_p99, 1)),
    ]
    title = f"Latency at {LOW_RATE} req/s with random gaps, 8 KB in 6 messages"
    return ResultTable(title, ("", "p50 µs", "p99 µs"), rows, notes="Added: median over rounds of paired differences.")


def _plot(figure: Any, rounds: list[dict[str, Drive]]) -> None:
    names = ["round robin", *(f"LBGR, {messages}" for messages in MESSAGES)]
    axes = figure.subplots()
    axes.bar(names, [statistics.median(r[name].rate for r in rounds) for name in names])
    axes.axhline(6000, linestyle="--", color="black", label="target")
    axes.set_ylabel("requests a second, one router core")
    axes.legend()
