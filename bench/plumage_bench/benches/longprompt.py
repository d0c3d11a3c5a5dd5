"""`longprompt`: what prompts of different length cost a router in CPU time.

The router, the compiled mock engine and the load generator are those of `bench router`: one message a prompt, 75 % of
its text shared over 32 prefixes, and the rest new in every request. The mock's agents publish each answered prompt, so
the router also reads a log. Its CPU time is that of its process, so all of it counts: receiving, reading the prompt,
deciding, sending, and the directory. Round robin without a directory is printed beside: it does all but deciding and
the directory. 450 KB of text stand for 100,000 tokens of 4.5 bytes. Where other work keeps the rate low, the process'
own background work counts for fewer requests, and the figures are too high.

Small requests of 1 KB are timed while prompts of 450 KB arrive at a fixed rate, about a tenth of what one core serves.

The decision path is timed by itself, in this process and by its thread's CPU time: reading the body, deciding, the
miss-ratio curve, the first token, the events of chunks that the replica did not have, and the answer's usage. It has no
sockets and no background work.
"""

from __future__ import annotations

import os
import random
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import thread_time_ns
from typing import Any

from plumage.errors import ConfigurationError
from plumage.hashing.chunks import ENDS
from plumage_bench.benches.decision import Fleet, reader_of_tiny_chat, requests
from plumage_bench.benches.router.prompts import PREFIXES, make_bodies
from plumage_bench.benches.router.rig import Drive, Rig
from plumage_bench.harness import Context, Report, ResultTable
from plumage_router.http.paths import CHAT_PATH
from plumage_router.request.prompt import PromptReader
from plumage_router.request.usage import Usage
from plumage_router.routing.decider import Decision
from plumage_router.routing.decision_log import CacheCurve

__all__ = ["run"]

SIZES = (8192, 65_536, 450_000)  # bytes of text
LONG = SIZES[-1]
CONNECTIONS = 16
TARGETS = {"router": "LBGR", "plain": "round robin"}
BESIDE_RATE = 80.0  # prompts of 450 KB a second, beside which small requests are timed
SMALL_RATE = 200.0  # small requests a second
WARM_UP = 2.0  # seconds: every prefix reaches a replica, and the directory
REPLICAS = 4
UNDER_WAY = 32  # requests between a decision and its answer
RATE = 400.0  # requests a second, on the clock that LBGR sees
TOKEN_BYTES = 4
STEPS = ("read", "decide", "curve", "first token", "events", "usage")

_SHARES = ("p50", "p90", "p99", "max")

Steps = dict[int, list[list[float]]]  # by size: microseconds of each of `STEPS`, one list a round
Drives = dict[tuple[int, str], list[Drive]]


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: of each measurement. requests: timed of the decision path, after as many to warm up."""

    seconds: float
    rounds: int
    requests: int


FULL = Plan(seconds=4.0, rounds=5, requests=1000)
QUICK = Plan(seconds=1.5, rounds=2, requests=300)


def run(context: Context) -> Report:
    """ConfigurationError without a C compiler or a second core."""
    if len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError("bench longprompt needs two cores: one for the router, one for everything else")
    plan = QUICK if context.quick else FULL
    found: Drives = {(size, target): [] for size in SIZES for target in TARGETS}
    small: dict[str, list[Drive]] = {"alone": [], "beside": []}
    steps: Steps = {size: [] for size in SIZES}
    with context.progress("longprompt", plan.rounds * (len(found) + len(SIZES))) as advance:
        for size in SIZES:
            _measure(context, plan, size, found, small, advance)
            for number in range(plan.rounds):
                steps[size].append(Path(size, context.seed + number).time(plan.requests))
                advance(1)
    return _report(found, steps, small)


class Path:
    """Requests through the router's own code, as the router calls it; four replicas that keep every chunk."""

    def __init__(self, size: int, seed: int) -> None:
        self._rng = random.Random(f"longprompt {size} {seed}")
        self._bodies = make_bodies(1, seed, stream=True, size=size)
        self._reader: PromptReader = reader_of_tiny_chat()
        self._fleet = Fleet.of(REPLICAS, seed)
        self._curve = CacheCurve()
        self._held: list[set[int]] = [set() for _ in range(REPLICAS)]
        self._under_way: deque[Decision] = deque()
        self._now = 0.0
        self._taken = [0] * len(STEPS)  # nanoseconds

    def time(self, count: int) -> list[float]:
        """Mean microseconds of each step, of `count` requests after as many to warm up."""
        self._run(count)
        self._taken = [0] * len(STEPS)
        self._run(count)
        return [nanoseconds / count / 1000 for nanoseconds in self._taken]

    def _run(self, count: int) -> None:
        for raw in requests(self._bodies, count, self._rng):
            self._arrive(raw)
            if len(self._under_way) > UNDER_WAY:
                self._end(self._under_way.popleft())
            self._now += 1 / RATE

    def _arrive(self, raw: bytes) -> None:
        times = [thread_time_ns()]
        prompt = self._reader.read(CHAT_PATH, raw)
        times.append(thread_time_ns())
        self._under_way.append(self._fleet.decider.decide(prompt, self._fleet.loads, self._now))
        times.append(thread_time_ns())
        self._curve.add(prompt.chunks)
        times.append(thread_time_ns())
        self._note(0, times)

    def _end(self, decision: Decision) -> None:
        decider, chunks, slot = self._fleet.decider, decision.prompt.chunks, decision.ticket.slot
        held = self._held[slot]
        tokens = ENDS[len(chunks)] // TOKEN_BYTES
        new = [(key, 1, ENDS[depth] // TOKEN_BYTES) for depth, key in enumerate(chunks, 1) if key not in held]
        held.update(chunks)
        times = [thread_time_ns()]
        decider.first_token(decision, self._now)
        times.append(thread_time_ns())
        decider.mirror.apply(slot, new)
        times.append(thread_time_ns())
        decider.finished(decision, self._now, Usage(tokens, int(decision.ticket.hit_tokens)))
        times.append(thread_time_ns())
        self._note(3, times)

    def _note(self, first: int, times: Sequence[int]) -> None:
        for step, (before, after) in enumerate(pairwise(times), first):
            self._taken[step] += after - before


def _measure(
    context: Context, plan: Plan, size: int, found: Drives, small: dict[str, list[Drive]], advance: Any
) -> None:
    """All rounds of one size, the two routers in turn. small: gets the small requests' figures at the largest size."""
    with Rig(context.out / "longprompt-rig", context.seed, [1], size) as rig:
        rig.start()
        for number in range(plan.rounds):
            seed = context.seed * 1000 + number
            for target in TARGETS:
                if not number:
                    rig.drive(target, 1, seconds=WARM_UP, connections=CONNECTIONS, seed=seed + 500)
                drive = rig.drive(target, 1, seconds=plan.seconds, connections=CONNECTIONS, seed=seed)
                found[size, target].append(drive)
                advance(1)
            if size == LONG:
                rig.await_quiet_agents()
                for name, rate in (("alone", 1.0), ("beside", BESIDE_RATE)):
                    drive = rig.drive_beside(
                        "router", 1, seconds=plan.seconds + 1.0, rate=rate, small_rate=SMALL_RATE, seed=seed
                    )
                    small[name].append(drive)


def _report(found: Drives, steps: Steps, small: Mapping[str, Sequence[Drive]]) -> Report:
    path = {size: [statistics.median(column) for column in zip(*rounds, strict=True)] for size, rounds in steps.items()}
    cpu = {case: statistics.median(drive.cpu_micros for drive in drives) for case, drives in found.items()}
    return Report(
        keys={
            "cpu_ms": cpu[LONG, "router"] / 1000,
            "path_ms": sum(path[LONG]) / 1000,
            "path_us_64k": sum(path[65_536]),
            "path_us_8k": sum(path[8192]),
            "cpu_us_64k": cpu[65_536, "router"],
            "cpu_us_8k": cpu[8192, "router"],
            "small_p99_ms": statistics.median(drive.p99 for drive in small["beside"]) / 1000,
            "small_alone_p99_ms": statistics.median(drive.p99 for drive in small["alone"]) / 1000,
            "rps_450k": statistics.median(drive.rate for drive in found[LONG, "router"]),
        },
        tables=(_table(found), _small_table(small), _path_table(path)),
        plot=lambda figure: _plot(figure, cpu),
        data={
            "process": {
                f"{TARGETS[target]}, {size} bytes": [drive.document() for drive in drives]
                for (size, target), drives in found.items()
            },
            "small": {name: [drive.document() for drive in drives] for name, drives in small.items()},
            "path": {
                str(size): [dict(zip(STEPS, one, strict=True)) for one in rounds] for size, rounds in steps.items()
            },
        },
    )


def _table(found: Drives) -> ResultTable:
    rows: list[Sequence[str | float]] = []
    for (size, target), drives in found.items():
        micros = [drive.cpu_micros for drive in drives]
        rate = statistics.median(drive.rate for drive in drives)
        figures = (statistics.median(micros), min(micros), max(micros), rate)
        rows.append((f"{size:,}", TARGETS[target], *(round(figure, 1) for figure in figures)))
    return ResultTable(
        f"{CONNECTIONS} connections, one message, 75 % shared over {PREFIXES} prefixes, 4 replicas, one router core",
        ("bytes of text", "policy", "CPU µs/req, median", "least", "most", "req/s, median"),
        rows,
        notes=f"Medians of {len(found[LONG, 'router'])} rounds. CPU of the process, system calls included.",
    )


def _small_table(small: Mapping[str, Sequence[Drive]]) -> ResultTable:
    shown = {"alone": "one prompt of 450 KB a second", "beside": f"{BESIDE_RATE:g} prompts of 450 KB a second"}
    rows = [
        (shown[name], *(round(statistics.median(getattr(drive, share) for drive in drives)) for share in _SHARES))
        for name, drives in small.items()
    ]
    return ResultTable(
        f"Small requests of 1 KB, {SMALL_RATE:g} a second, through the LBGR router: µs to the answer",
        ("beside", *_SHARES),
        rows,
        "Medians of the rounds. The mock answers at once; the load generators share a core with it.",
    )


def _path_table(path: Mapping[int, Sequence[float]]) -> ResultTable:
    rows: list[Sequence[str | float]] = [
        (f"{size:,}", *(round(one, 1) for one in steps), round(sum(steps), 1)) for size, steps in path.items()
    ]
    return ResultTable(
        "The decision path by itself: CPU µs a request",
        ("bytes of text", *STEPS, "sum"),
        rows,
        "Medians of the rounds.",
    )


def _plot(figure: Any, cpu: Mapping[tuple[int, str], float]) -> None:
    axes = figure.subplots()
    for target, name in TARGETS.items():
        axes.plot(SIZES, [cpu[size, target] / 1000 for size in SIZES], marker="o", label=name)
    axes.axhline(1.5, linestyle="--", color="black", label="target at 450 KB")
    axes.set(xlabel="bytes of text", ylabel="router CPU, ms a request")
    axes.legend()
