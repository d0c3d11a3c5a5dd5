"""Runs the demo: our pool and its baseline, one after the other, with the same load and one killed engine each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from plumage.api.v1alpha1 import InferencePool
from plumage_cli.demo.client import Outcome, send_load
from plumage_cli.demo.load import LoadShape, Session, make_load
from plumage_cli.demo.summary import Summary, comparison, summarise
from plumage_cli.errors import CliError
from plumage_cli.local.foreground import Stopped, StopSignals, curl, pool_up, show
from plumage_cli.local.pool.supervisor import Supervisor
from plumage_cli.local.tables import last_requests, percent, pool_line, pool_overview

__all__ = ["DemoSettings", "run_demo"]

_KILL_AT = 0.4  # fraction of the load's requests
_REDRAW = 0.5  # seconds between two updates in a terminal
_LINE = 5.0  # seconds between two lines elsewhere


@dataclass(frozen=True, slots=True)
class DemoSettings:
    seed: int
    port: int
    keep: bool
    shape: LoadShape


@dataclass(slots=True)
class _Progress:
    """The progress of a load."""

    total: int
    outcomes: list[Outcome] = field(default_factory=list)
    killed: str | None = None

    def text(self) -> str:
        done = summarise(self.outcomes)
        killed = f"; {self.killed}" if self.killed else ""
        return (
            f"{done.requests} of {self.total} requests, hit ratio {percent(done.hit_ratio)}, "
            f"lost {done.lost}, cut {done.cut}{killed}"
        )


def run_demo(ours: InferencePool, baseline: InferencePool, settings: DemoSettings) -> None:
    """Run both pools and print the comparison. CliError when a request was lost."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    with contextlib.suppress(Stopped):
        asyncio.run(_demo(ours, baseline, settings, Console(highlight=False)))


async def _demo(ours: InferencePool, baseline: InferencePool, settings: DemoSettings, console: Console) -> None:
    load = make_load(settings.seed, settings.shape)
    signals = StopSignals()
    with signals.watched():
        first = await _run_pool(ours, load, settings, console, signals)
        second = await _run_pool(baseline, load, settings, console, signals)
        console.print()
        console.print(comparison(first, second, _name(ours), _name(baseline)))
        _refuse_losses(first, second)
        if settings.keep:
            await _keep(ours, settings, console, signals)


async def _run_pool(
    pool: InferencePool, load: list[Session], settings: DemoSettings, console: Console, signals: StopSignals
) -> Summary:
    console.rule(f"{pool.spec.initial_replicas} simulated engines, {_name(pool)}", align="left")
    async with pool_up(pool, console, signals, port=settings.port) as supervisor:
        progress = _Progress(sum(len(session.turns) for session in load))
        sending = asyncio.ensure_future(_send(supervisor, load, progress, console))
        asked = asyncio.ensure_future(signals.asked.wait())
        watching = asyncio.ensure_future(_watch(supervisor, progress, console))
        await _first_of(sending, asked, watching)
        if signals.asked.is_set():
            raise Stopped
        console.print(progress.text(), soft_wrap=True)
    return summarise(sending.result())


async def _first_of(*tasks: asyncio.Future[Any]) -> None:
    """Wait for the first task and cancel the others. Raises the error of a finished task."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _send(supervisor: Supervisor, load: list[Session], progress: _Progress, console: Console) -> list[Outcome]:
    model = supervisor.pool.spec.model.served_name

    def done(outcome: Outcome) -> None:
        progress.outcomes.append(outcome)
        if progress.killed is None and len(progress.outcomes) >= _KILL_AT * progress.total:
            progress.killed = _kill_an_engine(supervisor)
            console.print(f"[bold]{progress.killed}[/bold]")

    return await send_load(supervisor.endpoint, model, load, done=done)


def _kill_an_engine(supervisor: Supervisor) -> str:
    """Kill the engine that got the most requests; the message about it."""
    routed = {replica["id"]: replica["routed"] for replica in supervisor.view()["traffic"].get("replicas", [])}
    alive = [replica for replica in supervisor.replicas.values() if replica.engine.pid is not None]
    victim = max(alive, key=lambda replica: routed.get(replica.plan.id, 0))
    victim.engine.signal(signal.SIGKILL)
    return f"killed the engine of {victim.plan.id} (kill -9)"


async def _watch(supervisor: Supervisor, progress: _Progress, console: Console) -> None:
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE)
            view = supervisor.view()
            console.print(f"{progress.text()}\n  {pool_line(view)}", *last_requests(view, 2), sep="\n", soft_wrap=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(Group(pool_overview(supervisor.view()), progress.text()), refresh=True)
            await asyncio.sleep(_REDRAW)


async def _keep(pool: InferencePool, settings: DemoSettings, console: Console, signals: StopSignals) -> None:
    async with pool_up(pool, console, signals, port=settings.port) as supervisor:
        console.print(f"\npool {pool.metadata.name} keeps running; Ctrl-C ends it. Try:\n")
        console.print(f"  {curl(supervisor)}\n", soft_wrap=True)
        await show(supervisor, console, signals)


def _name(pool: InferencePool) -> str:
    return f"{pool.spec.router.policy} + {pool.spec.engine.eviction.policy}"


def _refuse_losses(*runs: Summary) -> None:
    lost = [error for run in runs for error in run.errors]
    if lost:
        raise CliError("requests were lost:\n" + "\n".join(f"  - {error}" for error in lost))
