"""One process of a pool: start it, restart it with a capped back-off, and end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from plumage.backoff import delay
from plumage_cli.errors import CliError
from plumage_cli.local.plan.processes import ProcessPlan
from plumage_cli.local.pool_view import ChildView
from plumage_cli.local.processes.child_log import PREFIX, ChildLog

__all__ = ["Child", "ChildState", "backoff", "exit_text"]

_FIRST_WAIT, _MAX_WAIT = 0.25, 15.0  # seconds between a crash and the next start
_REFUSED = 2  # exit status of our processes when their settings are wrong
_STABLE = 30.0  # seconds of running after which the count of crashes starts again


class ChildState(Enum):
    STARTING = "Starting"
    RUNNING = "Running"
    WAITING = "Waiting"  # crashed, until its next start
    STOPPED = "Stopped"


def backoff(crashes: int) -> float:
    """Seconds to wait after the `crashes`-th crash in a row."""
    return delay(crashes, _FIRST_WAIT, _MAX_WAIT)


class Child:
    """A process that is restarted until `stop`.

    on_change: called after each start and end. prepare: called before each start; raises CliError where the process
    can't start yet. fds: file descriptors that the process inherits, with the same numbers.
    """

    def __init__(
        self,
        plan: ProcessPlan,
        config: Path,
        log: ChildLog,
        on_change: Callable[[Child], None],
        *,
        prepare: Callable[[], object] = lambda: None,
        fds: Sequence[int] = (),
    ) -> None:
        self.plan = plan
        self.log = log
        self.state = ChildState.STARTING
        self.restarts = 0
        self.crashes = 0  # in a row
        self.last_exit: str | None = None
        self.refused = False  # whether it ended last because of its settings
        self._config = config
        self._on_change = on_change
        self._prepare = prepare
        self._fds = tuple(fds)
        self._process: asyncio.subprocess.Process | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def view(self) -> ChildView:
        """As other commands see it."""
        return {"pid": self.pid, "state": self.state.value, "restarts": self.restarts, "lastExit": self.last_exit}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_until_stopped(), name=f"run {self.plan.name}")

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds; returns when the process has ended."""
        self._stop.set()
        if self._task is None:
            return
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=grace)
        if not done:
            self.log.write(f"{PREFIX} did not end within {grace:g} s; killed")
            self.signal(signal.SIGKILL)
            await self._task

    def signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _run_until_stopped(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._prepare()
                await self._run_once()
            except CliError as error:
                self.last_exit = f"could not be started: {error}"
            except OSError as error:  # no process, memory or file descriptor left: counts as a crash
                self.last_exit = f"could not be started: {error.strerror}"
            if self._stop.is_set():
                break
            self.crashes = 1 if time.monotonic() - started > _STABLE else self.crashes + 1
            self.restarts += 1
            self._set_state(ChildState.WAITING)
            wait = backoff(self.crashes)
            self.log.write(f"{PREFIX} {self.plan.name} {self.last_exit}; restarting in {wait:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stop.wait()
        self._set_state(ChildState.STOPPED)

    async def _run_once(self) -> None:
        command = (sys.executable, "-m", "plumage_cli.local.processes.launch", str(os.getpid()), self.plan.module)
        process = await asyncio.create_subprocess_exec(
            *command,
            "--config",
            str(self._config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=self._fds,
            start_new_session=True,  # a terminal's Ctrl-C must not end the process: we drain it first
        )
        self._process = process
        if self._stop.is_set():  # `stop` was called during the start
            self.signal(signal.SIGTERM)
        self._set_state(ChildState.RUNNING)
        assert process.stdout is not None, "the pipe was asked for"
        await self.log.pump(process.stdout)
        code = await process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # processes that it started and left running
        self.last_exit, self.refused = exit_text(code), code == _REFUSED

    def _set_state(self, state: ChildState) -> None:
        self.state = state
        self._on_change(self)


def exit_text(code: int) -> str:
    """How a process ended, for people. code: as of `subprocess`, negative for a signal."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
