"""What ends a run of the demo: its load, the user, or an error of its own, which is reported."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plumage_cli.demo import run
from plumage_cli.demo.load import LoadShape
from plumage_cli.local.foreground import Stopped, StopSignals
from plumage_cli.manifests import read_pool

POOL = read_pool(Path(__file__).parents[3] / "examples" / "minimal.yaml")
SETTINGS = run.DemoSettings(1, 8000, keep=False, shape=LoadShape())


class Supervisor:
    """A pool whose table cannot be drawn."""

    def view(self) -> dict[str, Any]:
        raise ZeroDivisionError("a mistake in the table")


@pytest.fixture
def _pool(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def pool_up(*_: Any, **__: Any) -> AsyncIterator[Supervisor]:
        yield Supervisor()

    monkeypatch.setattr(run, "pool_up", pool_up)
    monkeypatch.setattr(run, "_LINE", 0.01)


def sends(monkeypatch: pytest.MonkeyPatch, seconds: float, error: Exception | None = None) -> None:
    async def send(*_: Any) -> list[Any]:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(run, "_send", send)


@pytest.mark.usefixtures("_pool")
@pytest.mark.parametrize("terminal", [True, False])
async def test_failing_table_ends_the_run_with_its_error(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    sends(monkeypatch, 60.0)
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with pytest.raises(ZeroDivisionError, match="a mistake in the table"):
        await asyncio.wait_for(run._run_pool(POOL, [], SETTINGS, console, StopSignals()), 30.0)


@pytest.mark.usefixtures("_pool")
async def test_end_and_failure_of_the_load_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_LINE", 60.0)
    console, signals = Console(file=io.StringIO()), StopSignals()
    sends(monkeypatch, 0.0)
    assert (await run._run_pool(POOL, [], SETTINGS, console, signals)).requests == 0
    sends(monkeypatch, 0.0, OSError("no such pool"))
    with pytest.raises(OSError, match="no such pool"):
        await run._run_pool(POOL, [], SETTINGS, console, signals)
    sends(monkeypatch, 60.0)
    signals.asked.set()
    with pytest.raises(Stopped):
        await run._run_pool(POOL, [], SETTINGS, console, signals)
