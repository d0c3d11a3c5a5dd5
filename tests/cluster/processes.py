"""Programs that run together. Each has a log. They end in reverse order of their start, and when their starter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from cluster.errors import ClusterError

__all__ = ["Group", "tail", "tethered"]

_TETHER = Path(__file__).with_name("tether.py")
_STOP_S, _POLL_S = 5.0, 0.05
_GO = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
"""For programs in Go: fewer garbage collections, which took a third of the API server's CPU time, within 1 GiB."""
_LONGEST = 400


class Group:
    """Programs of one run folder. `NAME.log` has the output of each. As a context manager it ends them all.

    Call `start` in the thread that lives longest: on Linux a program ends with the thread that started it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                tethered(command),
                cwd=self.folder,
                env={**_GO, **(os.environ if environment is None else environment)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def send(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def pids(self) -> dict[str, int]:
        """The pids of all programs that still run."""
        return {name: process.pid for name, process in self._running.items() if process.poll() is None}

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends a program SIGTERM, and kills it if it does not end."""
        process = self._running.pop(name)
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """Kills all programs: none has state that must be kept."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def until(self, what: str, ready: Callable[[], bool], within_s: float) -> None:
        """Waits for `ready`. Raises ClusterError with the ends of the logs if a program failed or the time is over."""
        end = time.monotonic() + within_s
        while not ready():
            ended = [name for name, process in self._running.items() if process.poll()]
            if ended or time.monotonic() > end:
                reason = f"{', '.join(ended)} failed" if ended else f"not so after {within_s:.0f} s"
                raise ClusterError(f"{what}: {reason}\n{self._logs_of(ended or self._running)}")
            time.sleep(_POLL_S)

    def _logs_of(self, names: Sequence[str] | Mapping[str, object]) -> str:
        return "\n".join(f"-- {name}.log\n{tail(self.folder / f'{name}.log')}" for name in names)


def tethered(command: Sequence[str]) -> list[str]:
    """A command that runs `command` and ends with the thread that starts it."""
    return [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command]


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, with long lines cut. Says so if the log does not exist."""
    try:
        last = log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …" for line in last)
    except OSError as error:
        return str(error)
