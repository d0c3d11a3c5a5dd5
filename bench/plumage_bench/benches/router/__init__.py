"""The throughput of one router on one core, and the latency that it adds to a request.

The router has a core of its own. The compiled mock engine (four replicas), the compiled load generator, the directory's
server and the mock's agents share another. Prompts have 8 KB in six messages. 75 % of the text is shared over 32
prefixes, and the rest is new in every request. Each answered prompt becomes directory events, as with real engines, so
the mirror changes under load. The same load directly to the mock is printed too, and round robin without a directory.
The added latency is measured at a low rate, together with the machine's noise (`latency`). With `peers=1` other routers
are measured beside ours (`peers`); `peers=FOLDER` says where their programs are.

The mock sends an answer at once and complete, but for the measurement of streams. There it sends 16 events, one every
5 ms, so that each reaches the router by itself; what counts is the router's CPU time a stream.

Our router checks API keys, counts each request against quotas of every kind, and traces one request in a hundred.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.benches.router.latency import DIRECT, ROUTED, TARGETS, Difference, Rounds
from plumage_bench.benches.router.peers import SIZES, Peer, compare, installed
from plumage_bench.benches.router.prompts import PREFIXES
from plumage_bench.benches.router.rig import Drive, Rig
from plumage_bench.harness import Context, Report, ResultTable

__all__ = ["run"]

MESSAGES = (6, 1, 20)
CONNECTIONS = 64
STREAMS = "LBGR, 6, streams"
LOW_RATE = 100  # requests a second at which the added latency is taken
LOW_CONNECTIONS = 16  # to each target then
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds of each measurement; `repeats`: paired rounds, each with a seed of its own."""

    full_load: float
    low_load: float
    peers: float
    repeats: int


FULL = Plan(full_load=6.0, low_load=20.0, peers=4.0, repeats=5)
QUICK = Plan(full_load=1.5, low_load=7.0, peers=1.5, repeats=2)


def run(context: Context) -> Report:
    """ConfigurationError without a C compiler or a second core."""
    if len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError("bench router needs two cores: one for the router, one for everything else")
    plan = QUICK if context.quick else FULL
    folder = _peers_folder(context)
    peers = installed(folder) if folder is not None else []
    with Rig(context.out / "router-rig", context.seed, MESSAGES) as rig:
        rig.start()
        steps = plan.repeats * (len(MESSAGES) + 4)
        with context.progress("router", steps) as advance:
            rounds = [_round(rig, plan, context.seed * 1000 + n, advance) for n in range(plan.repeats)]
        status, fast, spans = rig.status(), rig.preferred, rig.spans()
    low = Rounds.read([samples for _, samples in rounds])
    report = _report([drives for drives, _ in rounds], low, status, context, fast, spans)
    return report if folder is None else _with_peers(report, context, peers, folder, plan)


def _peers_folder(context: Context) -> Path | None:
    """Where the programs of other routers are; None if they are not to be measured. ConfigurationError without one."""
    given = context.options.get("peers", "0")
    if given == "0":
        return None
    folder = Path(".venv-peers/bin") if given == "1" else Path(given)
    if not installed(folder):
        raise ConfigurationError(f"peers={given}: no other router is in {folder}: run make setup-peers")
    return folder.absolute()


def _with_peers(report: Report, context: Context, peers: Sequence[Peer], folder: Path, plan: Plan) -> Report:
    with context.progress("router: peers", len(SIZES)) as advance:
        found = compare(context, peers, folder, seconds=plan.peers, rounds=plan.repeats, advance=advance)
    return replace(
        report,
        keys={**report.keys, **found.keys()},
        tables=(*report.tables, found.table()),
        data={**report.data, "peers": found.document()},
    )


def _round(rig: Rig, plan: Plan, seed: int, advance: Any) -> tuple[dict[str, Drive], bytes]:
    """Every measurement once, so that a round compares measurements of the same minute. Returns the samples of the low
    rate."""
    found: dict[str, Drive] = {}

    def take(name: str, target: str, messages: int, *, stream: bool = False) -> None:
        found[name] = rig.drive(
            target, messages, seconds=plan.full_load, connections=CONNECTIONS, seed=seed, stream=stream
        )
        advance(1)

    take("direct", "mock", 6)
    take("round robin", "plain", 6)
    for messages in MESSAGES:
        rig.drive("router", messages, seconds=0.5, connections=CONNECTIONS, seed=seed + 500)
        take(f"LBGR, {messages}", "router", messages)
    take(STREAMS, "router", 6, stream=True)
    rig.await_quiet_agents()
    samples = rig.compare(TARGETS, 6, seconds=plan.low_load, rate=LOW_RATE, connections=LOW_CONNECTIONS, seed=seed)
    advance(1)
    return found, samples


def _report(
    rounds: list[dict[str, Drive]],
    low: Rounds,
    status: Mapping[str, Any],
    context: Context,
    fast: bool,
    spans: float,
) -> Report:
    totals = status["totals"]
    added = {share: low.added(share, context.seed) for share in PERCENTILES}
    noise = {share: low.noise(share, context.seed) for share in PERCENTILES}
    keys = {
        "rps_8k": round(statistics.median(r["LBGR, 6"].rate for r in rounds), 1),
        "added_p99_ms": added[99].value / 1000,
        "added_p99_high_ms": added[99].high / 1000,
        "noise_p99_ms": max(abs(noise[99].low), abs(noise[99].high)) / 1000,
        "added_p50_ms": added[50].value / 1000,
        "cpu_us": statistics.median(r["LBGR, 6"].cpu_micros for r in rounds),
        "stream_us": statistics.median(r[STREAMS].cpu_micros for r in rounds),
        "spans": spans,
    }
    compared = {
        what: {str(share): difference.document() for share, difference in found.items()}
        for what, found in (("added", added), ("noise", noise))
    }
    return Report(
        keys=keys,
        tables=(_load_table(rounds, totals), _latency_table(low, added, noise, fast)),
        plot=lambda figure: _plot(figure, rounds),
        data={
            "rounds": [{name: drive.document() for name, drive in r.items()} for r in rounds],
            "low_rate": {**compared, "rounds": len(low), "real_time": fast},
            "status": totals,
        },
    )


def _load_table(rounds: list[dict[str, Drive]], totals: Mapping[str, Any]) -> ResultTable:
    names = ["direct", "round robin", *(f"LBGR, {messages}" for messages in MESSAGES), STREAMS]
    shown = {
        "direct": "direct to the mock",
        "round robin": "round robin, 6 messages, no directory",
        STREAMS: "LBGR, 6 messages, streams of 16 events in 80 ms",
    }
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
            "The mock answers at once, so latencies here are queues; those of streams include its 80 ms."
        ),
    )


def _latency_table(
    low: Rounds, added: Mapping[int, Difference], noise: Mapping[int, Difference], fast: bool
) -> ResultTable:
    rows = [
        (name, *(f"{low.percentile(share, columns):.0f}" for share in PERCENTILES))
        for name, columns in (("direct to the mock", DIRECT), ("LBGR, 6 messages", ROUTED))
    ]
    rows.append(("added", *(added[share].shown() for share in PERCENTILES)))
    rows.append(("the mock against itself: noise", *(noise[share].shown() for share in PERCENTILES)))
    how = (
        "at real-time priority"
        if fast
        else "at ordinary priority, disturbed by other work: no right to real-time priority"
    )
    return ResultTable(
        f"Latency in µs at {LOW_RATE} req/s with random gaps, 8 KB in 6 messages; 95 % intervals",
        ("", *(f"p{share}" for share in PERCENTILES)),
        rows,
        notes=(
            f"{len(low)} rounds of a request to the mock, another, and one to the router. They and the load generator "
            f"ran {how}. Added at p99: {added[99].verdict()}."
        ),
    )


def _plot(figure: Any, rounds: list[dict[str, Drive]]) -> None:
    names = ["round robin", *(f"LBGR, {messages}" for messages in MESSAGES)]
    axes = figure.subplots()
    axes.bar(names, [statistics.median(r[name].rate for r in rounds) for name in names])
    axes.axhline(6000, linestyle="--", color="black", label="target")
    axes.set_ylabel("requests a second, one router core")
    axes.legend()
