"""A local pool under faults and mutated requests: crashes, lost requests, and errors without a code.

A pool of simulated engines and three routers is started as a user would start it. Valid clients stream from it. Hostile
clients send requests that are valid but for one to three mutations. Meanwhile processes are killed or stopped, and
files and sockets are removed. The supervisor keeps clients' connections while routers are killed (decision 0332).
Requests that are lost with a router are counted separately.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage_bench.benches.storm.faults import KINDS, Faults
from plumage_bench.benches.storm.load import Honest, Hostile, Outcome
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.local_pool import LocalPool, local_pool
from plumage_cli.errors import CliError

__all__ = ["run"]

_QUICK, _WHOLE = (100_000, 100), (1_000_000, 1_000)  # mutated requests and faults
_ROUTERS = 3
_EVERY = 3.0  # mean seconds between two faults
_HONEST, _HOSTILE = 8, 12  # concurrent clients
_WELL = 120.0  # seconds for the pool to recover at the end
_LINES = 2_000  # of the supervisor's log are kept, because it explains a crash
_NEAR = 0.2  # seconds: a request in flight this near to a router's kill counts as on that router
_POOL = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}}},
    "replicas": 4,
}


@dataclass(slots=True)
class _Run:
    """The data for the report."""

    faults: Faults
    honest: list[Honest]
    hostile: list[Hostile]
    began: float
    ended: float
    crashes: Mapping[str, int]
    replaced: int  # servers of the directory whose socket was deleted
    tracebacks: int
    log: str  # of the supervisor
    well: bool
    status: int = 0

    @property
    def outcomes(self) -> list[Outcome]:
        return sorted((one for client in self.honest for one in client.outcomes), key=lambda one: one.began)

    @property
    def answers(self) -> Counter[str]:
        return sum((client.outcomes for client in self.hostile), Counter())

    def lost(self) -> tuple[int, int]:
        """Valid requests that ended before their first byte: on a killed router, and otherwise."""
        kills = [at for at, kind in self.faults.done if kind == "kill router"]
        lost = [one for one in self.outcomes if one.kind in ("lost", "refused")]
        killed = sum(any(one.began - _NEAR <= at <= one.ended + _NEAR for at in kills) for one in lost)
        return killed, len(lost) - killed


def run(context: Context) -> Report:
    """Options: mutated, faults, routers."""
    mutated, faults = _QUICK if context.quick else _WHOLE
    mutated = context.count("mutated", mutated, most=10_000_000)
    faults = context.count("faults", faults, most=100_000)
    routers = f"--routers={context.count('routers', _ROUTERS, most=16)}"
    with (
        tempfile.TemporaryDirectory(prefix="plm-") as runtime,
        local_pool(Path(runtime), _POOL, "storm", routers) as pool,
    ):
        done = asyncio.run(_storm(context, pool, mutated, faults))
        pool.process.send_signal(signal.SIGINT)
        done.status = pool.process.wait(60)
    return _report(done)


async def _storm(context: Context, pool: LocalPool, mutated: int, faults: int) -> _Run:
    """Runs everything concurrently until the last fault was done and the last mutated request was sent."""
    stop, left, seed, port = asyncio.Event(), [mutated], context.seed, pool.port

    def view() -> Mapping[str, Any]:
        try:
            return pool.view()
        except CliError:  # a fault removed its socket a moment ago
            return {"routers": [], "directory": None, "replicas": []}

    with context.progress("mutated requests", mutated) as sent, context.progress("faults", faults) as hurt:
        honest = [Honest(port, random.Random(f"{seed} honest {number}"), stop) for number in range(_HONEST)]
        hostile = [Hostile(port, random.Random(f"{seed} hostile {number}"), left, sent) for number in range(_HOSTILE)]
        inflicted = Faults(pool.folder, view, random.Random(f"{seed} faults"))
        streams = [asyncio.create_task(client.run()) for client in honest]
        began = time.monotonic()
        await asyncio.gather(inflicted.run(faults, _EVERY, hurt), *(client.run() for client in hostile))
        well = await asyncio.to_thread(pool.until_well, _WELL)
        stop.set()
        await asyncio.gather(*streams)
    seen = await asyncio.to_thread(view)
    crashes, replaced, tracebacks = _crashes(seen, inflicted.killed), _replaced(seen), _tracebacks(pool.folder)
    ended = time.monotonic()
    written = pool.log.read_text(errors="replace")
    return _Run(inflicted, honest, hostile, began, ended, crashes, replaced, tracebacks, written, well)


def _crashes(view: Mapping[str, Any], killed: Mapping[str, int]) -> dict[str, int]:
    """Processes that ended and that this benchmark did not kill, by role. The supervisor replaces a directory whose
    socket a fault removed before there was a second link to it; that is no crash."""
    restarts: Counter[str] = Counter()
    restarts["router"] = sum(router["restarts"] for router in view["routers"])
    restarts["directory"] = (view["directory"]["restarts"] if view["directory"] else 0) - _replaced(view)
    for replica in view["replicas"]:
        for role in ("engine", "agent"):
            restarts[role] += replica[role]["restarts"]
    return {role: max(0, count - killed.get(role, 0)) for role, count in restarts.items()}


def _replaced(view: Mapping[str, Any]) -> int:
    return view["directory"]["replaced"] if view["directory"] else 0


def _tracebacks(folder: Path) -> int:
    logs = [*folder.glob("*.log"), *folder.glob("*.log.1")]
    return sum(path.read_text(errors="replace").count("Traceback (most recent call last)") for path in logs)


def _report(done: _Run) -> Report:
    kinds = Counter(one.kind for one in done.outcomes)
    killed, otherwise = done.lost()
    unnamed = [name for client in done.hostile for name in client.unnamed]
    silent = [name for client in done.hostile for name in client.silent]
    keys = {
        "crashes": sum(done.crashes.values()) + done.tracebacks,
        "replaced": done.replaced,
        "unnamed_5xx": len(unnamed) + kinds["unnamed"],
        "lost_by_router_kill": killed,
        "lost_otherwise": otherwise,
        "refused_connections": kinds["refused"] + done.answers["refused"],
        "lost_for_good": sum(client.retried for client in done.honest),
        "silent": len(silent),
        "mutated": sum(done.answers.values()),
        "faults": len(done.faults.done),
        "honest": len(done.outcomes),
        "honest_whole": kinds["whole"],
        "well_again": int(done.well and done.status == 0),
        "seconds": round(done.ended - done.began),
    }
    counted = Counter(kind for _, kind in done.faults.done)
    tables = [
        ResultTable("Honest streams", ("outcome", "count"), sorted(kinds.items()),
                    "cut: after the first byte; lost: before it; named: an error with its code"),
        ResultTable("Mutated requests", ("answer", "count"), sorted(done.answers.items())),
        ResultTable("Faults", ("kind", "count"), [(kind, counted[kind]) for kind in KINDS]),
    ]  # fmt: skip
    data = {
        "crashes": dict(done.crashes), "tracebacks": done.tracebacks, "log": done.log.splitlines()[-_LINES:],
        "unnamed": unnamed[:100], "silent": silent[:100],
        "lost": [_lost(one, done) for one in done.outcomes if one.kind in ("lost", "refused", "unnamed")][:1000],
        "skipped": done.faults.skipped,
    }  # fmt: skip
    return Report(keys, tables, lambda figure: _plot(figure, done), data)


def _lost(one: Outcome, done: _Run) -> dict[str, Any]:
    """A lost request, and the faults near its time."""
    near = [kind for at, kind in done.faults.done if one.began - 5.0 <= at <= one.ended + _NEAR]
    return {"kind": one.kind, "at": round(one.began - done.began, 2), "seconds": round(one.ended - one.began, 2),
            "faults": near}  # fmt: skip


def _plot(figure: Any, done: _Run) -> None:
    """Valid streams by outcome over time, and a mark for each fault."""
    axes, bins = figure.subplots(), 60
    kinds: Sequence[str] = ("whole", "cut", "named", "lost", "refused", "unnamed")
    times = [[one.began - done.began for one in done.outcomes if one.kind == kind] for kind in kinds]
    axes.hist(times, bins=bins, stacked=True, label=kinds)
    for at, kind in done.faults.done:
        axes.axvline(at - done.began, color="red" if kind == "kill router" else "grey", linewidth=0.4)
    axes.set_xlabel("seconds; a line for each fault, red for a killed router")
    axes.set_ylabel("honest streams begun")
    axes.legend()
