"""`soak`: a local pool under clients that come and go, while its processes are restarted: what does not come back?

A pool of four simulated engines is started as a user would start it, with keys; local mode has no quotas. Clients talk
to it for half an hour: conversations, clients that leave, that reconnect, that read slowly, that are wrong, and new
tenants. Engines, agents, the router and the directory are restarted by signals in turn.

- `rss_grown`: processes whose resident memory grows by the rule of `slope.FLAT`, over a window without a restart of
  that process (`restarts.JUDGED`). Before it, the full run fills the largest stores (`load.fill`, `fill_hotness`):
  - The router's former homes (65,536 prompts; their dict is resized at the 87,381st), the texts in which it looks for
    broken prefixes (8 MiB) and its stored look-ups (4096 runs, 8 MB).
  - An engine's events for replay (10,000 batches) and evicted blocks (32,768; their dict keeps its size from the
    152,900th on).
  - The pool's hotness (65,536 nodes), of which each agent has a copy and the directory one of 24 bytes a node.
  `not_filled`: of the requests for that, those that there was no time for.
- `files_left`, `sockets_left`, `tasks_left`: above the level of processes of the same role at rest before the load
  (`observer.left_over`). Engines keep idle connections for five seconds, so the load has ended half a minute before.
- `entries_left`: requests, connections, bodies and pending owners that the metrics pages still count then.
- `crashes`: processes that ended without a signal of the bench, and tracebacks in logs.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from plumage.directory.server.local_server import SOCKET
from plumage_bench.benches.soak.load import CLIENTS, Load, Tenants, answer_long, fill
from plumage_bench.benches.soak.observer import Observer
from plumage_bench.benches.soak.pool_hotness import fill_hotness
from plumage_bench.benches.soak.report import Extent, SoakRun, report
from plumage_bench.benches.soak.restarts import JUDGED, Restart, plan, processes, restart
from plumage_bench.benches.soak.slope import FLAT
from plumage_bench.harness import Context, Report
from plumage_bench.local_pool import LocalPool, local_pool
from plumage_cli.errors import CliError

__all__ = ["FULL", "QUICK", "SPEC", "run", "tracebacks"]

SPEC: Final[Mapping[str, Any]] = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}, "cacheBlocks": 1500}},
    "replicas": 4,
}
_LINE_EVERY: Final = 15.0  # seconds
_PRIMING: Final = 10.0  # seconds of load before the level at rest is taken: imports and pools of threads are made then
_AT_REST: Final = 10  # samples, one a second
_WELL: Final = 60.0  # seconds for the last restarted process
_DIRECTORY_ENDED: Final = re.compile("^the directory's server (?:was )?ended ", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last)"
_BEFORE, _AFTER = 3, 40  # lines of a log around the begin of a traceback
_FILLERS: Final = (*32 * (fill,), *24 * (answer_long,))  # connections
_FILL_FROM: Final = 0.21  # of the run: after the router's last restart
_NAME: Final = "soak"
FULL: Final = Extent(1800.0, 5.0, 30.0, 30.0, 70_000, FLAT)
QUICK: Final = Extent(150.0, 1.0, 10.0, 20.0, 0, 0.1)  # its stores are not full, so only a large leak is one


def run(context: Context) -> Report:
    """Options: minutes."""
    extent = QUICK if context.quick else FULL
    if "minutes" in context.options:
        extent = replace(extent, seconds=60.0 * context.count("minutes", 30, most=10_000))
    with tempfile.TemporaryDirectory(prefix="plm-") as folder:
        tenants = Tenants(Path(folder, "keys"))
        with local_pool(Path(folder), SPEC, _NAME, f"--api-keys={tenants.path}") as pool:
            done = asyncio.run(_soak(context, pool, tenants, extent))
            pool.process.send_signal(signal.SIGINT)
            done.status = pool.process.wait(60)
    return report(done)


async def _soak(context: Context, pool: LocalPool, tenants: Tenants, extent: Extent) -> SoakRun:
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
    left = [extent.fill]
    filling = asyncio.create_task(_fill(load, pool, extent, left))
    await _play(load, extent.seconds)
    await asyncio.gather(restarting, filling)
    well = await asyncio.to_thread(pool.until_well, _WELL)
    await asyncio.sleep(extent.rest)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    ended = await observer.several(_AT_REST)
    written = pool.log.read_text(errors="replace")
    unasked = _unasked(observer.view, done, written)
    raised, not_filled = tracebacks(pool.folder), max(0, left[0])
    return SoakRun(extent, load, observer.samples, idle, ended, done, unasked, raised, not_filled, well, written)


async def _play(load: Load, seconds: float) -> None:
    """All clients for so long."""
    kinds = [(kind, number) for kind, (_, _, clients) in CLIENTS.items() for number in range(clients)]
    clients = [asyncio.create_task(load.run(kind, number)) for kind, number in kinds]
    await asyncio.sleep(seconds)
    load.stop.set()
    await asyncio.gather(*clients)


async def _fill(load: Load, pool: LocalPool, extent: Extent, left: list[int]) -> None:
    """Ends before the router is judged. left: counts the requests that are still to be sent."""
    if extent.fill:
        await load.rest(_FILL_FROM * extent.seconds)
        await asyncio.to_thread(fill_hotness, pool.folder / "dir" / SOCKET, _NAME, random.Random(load.seed))
        seeds = (random.Random(f"{load.seed} fill {number}") for number in count())
        with suppress(TimeoutError):
            async with asyncio.timeout((JUDGED["router"][0] - _FILL_FROM) * extent.seconds):
                await asyncio.gather(*(turn(load, rng, left) for turn, rng in zip(_FILLERS, seeds, strict=False)))


async def _restart(observer: Observer, planned: Sequence[Restart], done: list[Restart]) -> None:
    """done: gets each with the time at which it was really made."""
    for one in planned:
        await asyncio.sleep(max(0.0, observer.began + one.at - time.monotonic()))
        with suppress(CliError):  # the supervisor is busy
            view = await asyncio.to_thread(observer.pool.view)
            if restart(view, one):
                done.append(replace(one, at=time.monotonic() - observer.began))


async def _lines(context: Context, observer: Observer, load: Load, seconds: float) -> None:
    """Prints what is going on."""
    while True:
        sent, before = load.requests, time.monotonic()
        await asyncio.sleep(_LINE_EVERY)
        rate = (load.requests - sent) / (time.monotonic() - before)
        shown = ", ".join(
            f"{name} {size.resident / 1e6:.1f} MB {size.files} files"
            for name in ("router", "engine 0", "agent 0", "directory", "supervisor")
            if (size := observer.samples[-1].sizes.get(name)) is not None
        )
        text = f"soak: {observer.samples[-1].at:.0f} of {seconds:.0f} s, {rate:.0f} requests/s; {shown}"
        context.console.print(text, highlight=False, soft_wrap=True)


def _unasked(view: Mapping[str, Any], done: Sequence[Restart], log: str) -> int:
    """Ends of processes that the bench did not ask for. The supervisor counts an end of the directory's server twice if
    it notices the missing socket first, so these are counted in its log."""
    ends = {name: int(child["restarts"]) for name, child in processes(view).items()}
    ends["directory"] = len(_DIRECTORY_ENDED.findall(log))
    asked = Counter(one.name for one in done)
    return sum(max(0, count - asked[name]) for name, count in ends.items())


def tracebacks(folder: Path) -> list[str]:
    """Each traceback in the logs of a pool's processes, with the file's name and the lines around it."""
    found = []
    for path in sorted([*folder.glob("*.log"), *folder.glob("*.log.1")]):
        lines = path.read_text(errors="replace").splitlines()
        begins = [number for number, line in enumerate(lines) if _TRACEBACK in line]
        found += ["\n".join([path.name, *lines[max(0, at - _BEFORE) : at + _AFTER]]) for at in begins]
    return found
