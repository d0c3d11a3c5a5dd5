"""Output of a pool in the foreground without a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from plumage_cli.local import foreground
from plumage_cli.local.foreground import Output, StopSignals, show


class Supervisor:
    """A pool whose replica has these states, one per poll. At the last one the user asks to stop."""

    def __init__(self, states: list[str], signals: StopSignals) -> None:
        self._states: Iterator[str] = iter(states)
        self._left = len(states)
        self._signals = signals

    def view(self) -> dict[str, Any]:
        self._left -= 1
        if not self._left:
            self._signals.asked.set()
        return {"replicas": [{"id": "chat-0", "state": next(self._states)}], "traffic": {}}


async def test_idle_pool_prints_no_repeated_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "_LINE", 0.001)
    signals, console = StopSignals(), Console(file=io.StringIO(), force_terminal=False)
    states = ["Warming", "Ready", "Ready", "Ready", "Warming", "Ready", "Ready"]
    await show(Supervisor(states, signals), console, signals)  # type: ignore[arg-type]
    printed = [row.split()[1] for row in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert printed == ["Warming", "Ready", "Warming", "Ready"]


def test_pool_prints_on_where_nobody_reads_its_output() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as stream:
        console = Console(file=Output(stream))  # type: ignore[arg-type]
        for _ in range(3):
            console.print("router 1 was ended by SIGKILL; restarting it")


def test_pool_prints_on_after_a_full_disk() -> None:
    class Disk(io.StringIO):
        full = True

        def flush(self) -> None:
            if self.full:
                raise OSError(28, "No space left on device")

    disk = Disk()
    console = Console(file=Output(disk))  # type: ignore[arg-type]
    console.print("while it is full")
    disk.full = False
    console.print("later")
    assert "later" in disk.getvalue()
