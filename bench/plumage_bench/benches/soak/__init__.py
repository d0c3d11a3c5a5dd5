"""`soak`: a local pool under clients that come and go, while its processes are restarted: what does not come back?

A pool of four simulated engines is started as a user would start it, with keys; local mode has no quotas. Clients talk to it for half
an hour: conversations, clients that leave, that reconnect, that read slowly, that are wrong, and new tenants. Engines,
agents, the router and the directory are restarted by signals in turn.

- `rss_grown`: processes whose resident memory grows by the rule of `slope.FLAT`, over a window without a restart of
  that process (`restarts.JUDGED`). The full run first sends so many short requests that the largest store of the
  router, of former homes, is full before that window.
- `files_left`, `sockets_left`, `tasks_left`: above the level that the same process, or its predecessor, had at rest
  before the load. Engines keep idle connections for five seconds, so the load has ended half a minute before.
- `entries_left`: requests, connections, bodies and pending owners that the metrics pages still count then.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plumage_bench.benches.soak.load import CLIENTS, Load, Tenants, fill
from plumage_bench.benches.soak.observer import Observer, Sample, left_over, slope_in
from plumage_bench.benches.soak.pages import STORES, sum_of
from plumage_bench.benches.soak.restarts import JUDGED, Restart, plan, processes, restart
from plumage_bench.benches.soak.slope import FLAT, Slope
from plumage_bench.harness import Context, Figure, Report, ResultTable
from plumage_bench.local_pool import LocalPool, local_pool

__all__ = ["FULL", "QUICK", "Extent", "run"]

SPEC: Final[Mapping[str, Any]] = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}, "cacheBlocks": 1500}},
    "replicas": 4,
}
_LINE_EVERY: Final = 15.0  # seconds
_PRIMING: Final = 10.0  # seconds of load before the level at rest is taken: imports and pools of threads are made then
_AT_REST: Final = 10  # samples, one a second
_WELL: Final = 60.0  # seconds for the last restarted process
_FILLERS: Final = 12  # connections
_FILL_FROM: Final = 0.31  # of the run: after the router's last restart
_MB: Final = 1e6
_KINDS: Final = ("files", "sockets", "tasks")


@dataclass(frozen=True, slots=True)
class Extent:
    """seconds: of the load. every: seconds between samples, and between restarts of engines and agents. rest: seconds
    after the load until the level at rest is taken. fill: short requests that fill the router's largest store. flat: the
    share by which memory may grow."""

    seconds: float
    every: float
    restarts_every: float
    rest: float
    fill: int
    flat: float


FULL: Final = Extent(1800.0, 5.0, 30.0, 30.0, 70_000, FLAT)
QUICK: Final = Extent(150.0, 1.0, 10.0, 20.0, 0, 0.1)  # its stores are not full, so only a large leak is one


@dataclass(slots=True)
class _Run:
    """The data for the report. idle, ended: samples at rest, before and after the load."""

    extent: Extent
    load: Load
    samples: Sequence[Sample]
    idle: Sequence[Sample]
    ended: Sequence[Sample]
    restarts: Sequence[Restart]
    unasked: int
    tracebacks: int
    well: bool
    log: str
    status: int = 0

    def slopes(self) -> dict[str, Slope | None]:
        """By process; None if it could not be judged."""
        seconds = self.extent.seconds
        parts = {name: (start * seconds, end * seconds) for name, (start, end) in JUDGED.items()}
        return {name: slope_in(self.samples, name, *part) for name, part in parts.items()}

    def left(self) -> dict[str, int]:
        """Of files, sockets, tasks and entries."""
        found = Counter(dict.fromkeys((*_KINDS, "entries"), 0))
        for (_, what), more in left_over(self.idle, self.ended).items():
            found[what if what in _KINDS else "entries"] += more
        return found


def run(context: Context) -> Report:
    """Options: minutes."""
    extent = QUICK if context.quick else FULL
    if "minutes" in context.options:
        seconds = 60.0 * context.count("minutes", 30, most=10_000)
        extent = Extent(seconds, extent.every, extent.restarts_every, extent.rest, extent.fill, extent.flat)
    with tempfile.TemporaryDirectory(prefix="plm-") as folder:
        tenants = Tenants(Path(folder, "keys"))
        with local_pool(Path(folder), SPEC, "soak", f"--api-keys={tenants.path}") as pool:
            done = asyncio.run(_soak(context, pool, tenants, extent))
            pool.process.send_signal(signal.SIGINT)
            done.status = pool.process.wait(60)
    return _report(done)


async def _soak(context: Context, pool: LocalPool, tenants: Tenants, extent: Extent) -> _Run:
    priming = Load(pool.port, tenants, f"{context.seed} priming")
    await _play(priming, _PRIMING)
    await asyncio.sleep(extent.rest)
    observer, load = Observer(pool), Load(pool.port, tenants, str(context.seed))
    idle = await observer.several(_AT_REST)
    observer.samples, observer.began = [], time.monotonic()
    beside = [
        asyncio.create_task(observer.run(extent.every)),
        asyncio.create_task(_lines(context, observer, load, extent.seconds)),
    ]
    done: list[Restart] = []
    restarting = asyncio.create_task(_restart(observer, plan(extent.seconds, extent.restarts_every), done))
    filling = asyncio.create_task(_fill(load, extent))
    await _play(load, extent.seconds)
    await asyncio.gather(restarting, filling)
    well = await asyncio.to_thread(pool.until_well, _WELL)
    await asyncio.sleep(extent.rest)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    ended = await observer.several(_AT_REST)
    asked = Counter(one.name for one in done)
    unasked = sum(abs(child["restarts"] - asked[name]) for name, child in processes(observer.view).items())
    written = pool.log.read_text(errors="replace")
    return _Run(extent, load, observer.samples, idle, ended, done, unasked, _tracebacks(pool.folder), well, written)


async def _play(load: Load, seconds: float) -> None:
    """All clients for so long."""
    kinds = [(kind, number) for kind, (_, _, clients) in CLIENTS.items() for number in range(clients)]
    clients = [asyncio.create_task(load.run(kind, number)) for kind, number in kinds]
    await asyncio.sleep(seconds)
    load.stop.set()
    await asyncio.gather(*clients)


async def _fill(load: Load, extent: Extent) -> None:
    if extent.fill:
        await load.rest(_FILL_FROM * extent.seconds)
        left = [extent.fill]
        rngs = [random.Random(f"{load.seed} fill {number}") for number in range(_FILLERS)]
        await asyncio.gather(*(fill(load, rng, left) for rng in rngs))


async def _restart(observer: Observer, planned: Sequence[Restart], done: list[Restart]) -> None:
    """done: gets each with the time at which it was really made."""
    for one in planned:
        await asyncio.sleep(max(0.0, observer.began + one.at - time.monotonic()))
        view = await asyncio.to_thread(observer.pool.view)
        if restart(view, one):
            done.append(Restart(time.monotonic() - observer.began, one.name, one.kill))


async def _lines(context: Context, observer: Observer, load: Load, seconds: float) -> None:
    """Prints what is going on."""
    while True:
        sent, before = load.requests, time.monotonic()
        await asyncio.sleep(_LINE_EVERY)
        rate = (load.requests - sent) / (time.monotonic() - before)
        shown = ", ".join(
            f"{name} {size.resident / _MB:.1f} MB {size.files} files"
            for name in ("router", "engine 0", "agent 0", "directory", "supervisor")
            if (size := observer.samples[-1].sizes.get(name)) is not None
        )
        text = f"soak: {observer.samples[-1].at:.0f} of {seconds:.0f} s, {rate:.0f} requests/s; {shown}"
        context.console.print(text, highlight=False, soft_wrap=True)


def _tracebacks(folder: Path) -> int:
    logs = [*folder.glob("*.log"), *folder.glob("*.log.1")]
    return sum(path.read_text(errors="replace").count("Traceback (most recent call last)") for path in logs)


def _report(done: _Run) -> Report:
    slopes, left, extent = done.slopes(), done.left(), done.extent
    known = {name: slope for name, slope in slopes.items() if slope is not None}
    keys: dict[str, Figure] = {
        "rss_grown": sum(slope.grows(extent.flat) for slope in known.values()),
        "not_judged": len(slopes) - len(known),
        **{f"{what}_left": count for what, count in left.items()},
    }
    for role in ("router", "engine", "agent", "directory", "supervisor"):
        keys |= _slope_keys(role, known)
    keys |= {
        "crashes": done.unasked + done.tracebacks,
        "well_again": int(done.well and done.status == 0),
        "restarts": len(done.restarts),
        "requests": done.load.requests,
        "seconds": round(extent.seconds),
    }
    tables = [_memory_table(done, slopes), _rest_table(done), _store_table(done), _outcome_table(done)]
    data = {
        "samples": [_plain(one) for one in done.samples],
        "idle": [_plain(one) for one in done.idle], "ended": [_plain(one) for one in done.ended],
        "left": {f"{name}: {what}": more for (name, what), more in left_over(done.idle, done.ended).items()},
        "restarts": [[round(one.at, 1), one.name, one.kill] for one in done.restarts],
        "unasked": done.unasked, "tracebacks": done.tracebacks, "log": done.log.splitlines()[-500:],
    }  # fmt: skip
    return Report(keys, tables, lambda figure: _plot(figure, done), data)


def _slope_keys(role: str, known: Mapping[str, Slope]) -> dict[str, Figure]:
    """In MB an hour, of the role's process that most certainly grows."""
    slopes = [slope for name, slope in known.items() if name.partition(" ")[0] == role]
    if not slopes:
        return {}
    worst = max(slopes, key=lambda slope: slope.growth(slope.low))
    name = f"rss_slope_{role}"
    return {name: worst.per_hour / _MB, f"{name}_low": worst.low / _MB, f"{name}_high": worst.high / _MB}


def _memory_table(done: _Run, slopes: Mapping[str, Slope | None]) -> ResultTable:
    rows: list[Sequence[Figure]] = []
    for name, slope in slopes.items():
        if slope is None:
            rows.append((name, "–", "–", "–", "–", "–", "not judged"))
            continue
        hourly = [round(one / _MB, 2) for one in (slope.per_hour, slope.low, slope.high)]
        share = f"{100 * slope.growth(slope.per_hour):.2f} %, from {100 * slope.growth(slope.low):.2f} %"
        verdict = "grows" if slope.grows(done.extent.flat) else "flat"
        rows.append((name, f"{slope.mean / _MB:.1f}", hourly[0], f"{hourly[1]} to {hourly[2]}", share,
                     f"{slope.seconds:.0f}", verdict))  # fmt: skip
    each = _bytes_a_request(done, slopes.get("router"))
    return ResultTable(
        "Resident memory",
        ("process", "MB", "MB an hour", "95 %", "growth in the window", "seconds", "verdict"),
        rows,
        f"Grows: the interval's lower end is above {100 * done.extent.flat:g} % of the memory over the window.{each}",
    )


def _bytes_a_request(done: _Run, router: Slope | None) -> str:
    """What the limit is for the router."""
    if router is None or not done.load.requests:
        return ""
    requests = done.load.requests / done.extent.seconds * router.seconds
    return f" Of the router that is {done.extent.flat * router.mean / requests:.0f} bytes a request."


def _rest_table(done: _Run) -> ResultTable:
    """All processes: what they have at rest, before and after."""
    rows: list[Sequence[Figure]] = []
    first, last = done.idle[-1], done.ended[-1]
    for name in sorted(last.sizes):
        after, before = last.sizes[name], first.sizes.get(name)
        levels = [one.levels().get((name, "tasks")) for one in (first, last)]
        tasks = " → ".join("–" if level is None else f"{level:.0f}" for level in levels)
        if before is not None:
            rows.append((name, f"{before.files} → {after.files}", f"{_sockets(before.sockets)} → "
                         f"{_sockets(after.sockets)}", f"{before.threads} → {after.threads}", tasks))  # fmt: skip
    left = [f"{name}: {what} {more}" for (name, what), more in left_over(done.idle, done.ended).items()]
    return ResultTable(
        "At rest, before → after the load",
        ("process", "files", "sockets", "threads", "tasks"),
        rows,
        f"Left over: {'; '.join(left) or 'nothing'}.",
    )


def _sockets(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "0"


def _store_table(done: _Run) -> ResultTable:
    """Sizes of the stores with a bound, which may be full but must not grow on."""
    half = [one for one in done.samples if one.at >= done.extent.seconds / 2]
    columns = [one for one in (done.samples[:1] + half[:1] + done.ended[-1:]) if one]
    rows: list[Sequence[Figure]] = []
    for name in STORES:
        values = [_total(one, name) for one in columns]
        rows.append((name, *values))
    return ResultTable("Entries of bounded stores", ("store", "at first", "at half", "at rest"), rows)


def _total(sample: Sample, name: str) -> Figure:
    values = [value for page in sample.pages.values() if (value := sum_of(page, name)) is not None]
    return round(sum(values)) if values else "–"


def _outcome_table(done: _Run) -> ResultTable:
    rows = [(kind, outcome, count) for (kind, outcome), count in sorted(done.load.outcomes.items())]
    return ResultTable("What became of each client's turns", ("client", "outcome", "count"), rows)


def _plain(one: Sample) -> dict[str, Any]:
    sizes = {
        name: [size.pid, size.resident, size.anonymous, size.threads, size.files, dict(size.sockets)]
        for name, size in one.sizes.items()
    }
    router = {name: value for name, value in one.pages.get("router", {}).items()}
    return {"at": round(one.at, 1), "sizes": sizes, "router": router}


def _plot(figure: Any, done: _Run) -> None:
    """Memory and descriptors in time, with a mark for each restart."""
    memory, files = figure.subplots(2, 1, sharex=True)
    names = sorted({name for one in done.samples for name in one.sizes})
    for name in names:
        dashed = {"linestyle": "-" if name in JUDGED else ":", "linewidth": 1.0}
        times, sizes = zip(*_series(done.samples, name), strict=True)
        memory.plot(times, [size.resident / _MB for size in sizes], label=name, **dashed)
        files.plot(times, [size.files for size in sizes], **dashed)
    colours = {"router": "red", "directory": "black"}
    for one in done.restarts:
        for axes in (memory, files):
            axes.axvline(one.at, color=colours.get(one.name, "lightgrey"), linewidth=0.4)
    memory.set_ylabel("resident memory, MB")
    memory.set_yscale("log")
    files.set_ylabel("open descriptors")
    files.set_xlabel("seconds; a line for each restart: red the router, black the directory")
    memory.legend(fontsize=6, ncols=4)


def _series(samples: Sequence[Sample], name: str) -> Iterator[tuple[float, Any]]:
    return ((one.at, one.sizes[name]) for one in samples if name in one.sizes)
