"""A pool in the foreground of a terminal: start messages, the endpoint, a live table, and Ctrl-C to drain and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.live import Live

from plumage.api.v1alpha1 import InferencePool
from plumage_cli.local.control.server import ControlServer
from plumage_cli.local.folder.cleanup import cleanup_process
from plumage_cli.local.folder.pool_folder import PoolFolder
from plumage_cli.local.plan.paths import HOST
from plumage_cli.local.plan.vllm import VllmInterpreter
from plumage_cli.local.pool.supervisor import Supervisor
from plumage_cli.local.tables import pool_line, pool_overview

__all__ = ["Output", "StopSignals", "Stopped", "curl", "pool_up", "run", "show"]

_REDRAW = 1.0  # seconds between two updates of the table
_LINE = 10.0  # seconds between two lines where the output is no terminal


class Output:
    """A stream whose lines are lost while they can't be written: on a full disk, or once nobody reads them. The pool
    keeps running, as with a full disk for `ChildLog`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._no_error():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._no_error():
            self._stream.flush()

    @contextlib.contextmanager
    def _no_error(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # it stays so: what Python still has would fail again at the end
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self._stream.fileno())
        except OSError:
            pass


class Stopped(Exception):  # noqa: N818 - not an error
    """A user asked to stop."""


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP. The first one asks to stop, the second one to stop without draining."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._take)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _take(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


def run(pool: InferencePool, **options: Any) -> None:
    """Run the pool until SIGINT or SIGTERM; a second signal ends it without draining. options: of `pool_up`."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with contextlib.suppress(Stopped):
        asyncio.run(_run(pool, Console(highlight=False, file=cast(TextIO, Output(sys.stdout))), **options))


async def _run(pool: InferencePool, console: Console, **options: Any) -> None:
    signals = StopSignals()
    with signals.watched():
        async with pool_up(pool, console, signals, **options) as supervisor:
            console.print(f"\npool {pool.metadata.name} is running; Ctrl-C ends it. Try:\n")
            console.print(f"  {curl(supervisor)}\n", soft_wrap=True)
            await show(supervisor, console, signals)
            console.print("draining; press Ctrl-C again to end at once")


@contextlib.asynccontextmanager
async def pool_up(
    pool: InferencePool,
    console: Console,
    signals: StopSignals,
    *,
    port: int,
    host: str = HOST,
    api_keys: Path | None = None,
    vllm: VllmInterpreter | None = None,
    routers: int = 1,
) -> AsyncIterator[Supervisor]:
    """Start the pool, and end all of it after the block. Raises Stopped when a signal arrives during the start."""
    folder = PoolFolder.take(pool.metadata.name)
    supervisor = Supervisor(
        pool, folder, port=port, host=host, api_keys=api_keys, vllm=vllm, routers=routers, report=console.print
    )
    control = ControlServer(supervisor)
    with cleanup_process(folder.path) as cleanup:
        supervisor.call_each_second(cleanup.restart_if_ended)
        try:
            await control.start()
            supervisor.watch_socket(control.watched)
            await _start_unless_stopped(supervisor, signals)
            yield supervisor
        finally:
            try:
                await control.stop()
            finally:
                await _end(supervisor, signals)


async def _start_unless_stopped(supervisor: Supervisor, signals: StopSignals) -> None:
    start = asyncio.ensure_future(supervisor.start())
    asked = asyncio.ensure_future(signals.asked.wait())
    await asyncio.wait((start, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if start.done():
        start.result()
        return
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    raise Stopped


async def _end(supervisor: Supervisor, signals: StopSignals) -> None:
    stop = asyncio.ensure_future(supervisor.stop())
    hurry = asyncio.ensure_future(signals.hurry.wait())
    await asyncio.wait((stop, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not stop.done():
        supervisor.kill()
    await stop


async def show(supervisor: Supervisor, console: Console, signals: StopSignals) -> None:
    """Show the pool until a signal: a live table in a terminal, elsewhere a line after each change."""
    if console.is_terminal:
        with Live(pool_overview(supervisor.view()), console=console, auto_refresh=False) as live:
            while not await _stopped_within(signals, _REDRAW):
                live.update(pool_overview(supervisor.view()), refresh=True)
    else:
        last = ""
        while not await _stopped_within(signals, _LINE):
            if (now := pool_line(supervisor.view())) != last:
                console.print(now, soft_wrap=True)
            last = now


async def _stopped_within(signals: StopSignals, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await signals.asked.wait()
    return signals.asked.is_set()


def curl(supervisor: Supervisor) -> str:
    """A curl command for the pool's endpoint."""
    name = supervisor.pool.spec.model.served_name
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    key = " -H 'Authorization: Bearer YOUR-KEY'" if supervisor.needs_key else ""
    return f"curl -s {supervisor.endpoint}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
