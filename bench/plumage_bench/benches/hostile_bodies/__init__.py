"""`hostile-bodies`: how long large and hostile request bodies delay small requests.

A router process runs before an engine that answers at once. Small requests arrive at a steady rate. At the same time
another process sends one kind of body repeatedly on several connections. The figures are the P99 of the small requests'
time, and its difference to the P99 without other requests.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumage_bench.benches.hostile_bodies.bodies import BODIES
from plumage_bench.benches.hostile_bodies.rig import Sample, Setting, measure
from plumage_bench.harness import Context, Figure, Report, ResultTable

__all__ = ["run"]

TARGET = 20.0  # limit of the ms that a hostile body adds at P99
QUIET = "nothing else"


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: of each measurement. rounds: each measures every kind of body once, and the router without hostile
    bodies."""

    seconds: float
    rounds: int


def run(context: Context) -> Report:
    """Each kind of body beside small requests, and the router without hostile bodies in each round."""
    plan = Plan(3.0, 1) if context.quick else Plan(10.0, 3)
    names = [QUIET, *BODIES]
    found: dict[str, list[Sample]] = {name: [] for name in names}
    with context.progress("hostile-bodies", plan.rounds * len(names)) as advance:
        for _ in range(plan.rounds):
            for name in names:
                setting = Setting(context.out / "hostile-rig", BODIES.get(name), plan.seconds)
                found[name].append(asyncio.run(measure(setting)))
                advance(1)
    return _report(found, plan)


def _report(found: Mapping[str, Sequence[Sample]], plan: Plan) -> Report:
    delays = {name: statistics.median(_delays(found, name)) for name in found if name != QUIET}
    worst = max(delays, key=lambda name: delays[name])
    keys: dict[str, Figure] = {
        "worst_delay_p99_ms": round(delays[worst], 1),
        "worst": worst.replace(" ", "_"),
        "quiet_p99_ms": round(statistics.median(sample.p99 for sample in found[QUIET]), 2),
        "small_failed": sum(sample.failed for samples in found.values() for sample in samples),
        "left_out_share": round(max(sample.stopped / sample.requests for one in found.values() for sample in one), 4),
    }
    table = ResultTable(
        "Small requests beside hostile bodies, through a router process",
        ("beside", "P50 ms", "P99 ms", "longest ms", "P99 added ms", "left out", "bodies sent", "answered with"),
        [_row(name, samples, delays) for name, samples in found.items()],
        notes=(
            f"Medians of {plan.rounds} rounds of {plan.seconds:g} s; 50 small requests a second; the engine answers at "
            f"once. Left out: small requests that met the router while the kernel kept it from its core. Target: at "
            f"most {TARGET:g} ms added at P99."
        ),
    )
    data = {name: [sample.document() for sample in samples] for name, samples in found.items()}
    return Report(keys=keys, tables=(table,), plot=lambda figure: _plot(figure, delays), data={"samples": data})


def _delays(found: Mapping[str, Sequence[Sample]], name: str) -> list[float]:
    """Milliseconds added at P99, round by round."""
    return [max(0.0, one.p99 - quiet.p99) for one, quiet in zip(found[name], found[QUIET], strict=True)]


def _row(name: str, samples: Sequence[Sample], delays: Mapping[str, float]) -> tuple[Any, ...]:
    statuses = sorted({status for sample in samples for status in sample.statuses})
    return (
        name,
        round(statistics.median(sample.p50 for sample in samples), 2),
        round(statistics.median(sample.p99 for sample in samples), 1),
        round(max(sample.longest for sample in samples), 1),
        round(delays[name], 1) if name in delays else "",
        sum(sample.stopped for sample in samples),
        sum(sample.sent for sample in samples),
        ", ".join(map(str, statuses)),
    )


def _plot(figure: Any, delays: Mapping[str, float]) -> None:
    axes = figure.subplots()
    axes.barh(list(delays), list(delays.values()))
    axes.axvline(TARGET, linestyle="--", color="black", label="target")
    axes.set_xlabel("ms added to small requests at P99")
    axes.legend()
    figure.tight_layout()
