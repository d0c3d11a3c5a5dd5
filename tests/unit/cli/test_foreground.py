"""Output of a pool in the foreground without a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from plumage_cli.local import foreground
from plumage_cli.local.foreground import StopSignals, show


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
