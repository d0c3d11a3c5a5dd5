"""The directory's server of a local pool: how it ended is known, and a restart that fails is an error."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.conditions import until

from plumage.errors import PlumageError
from plumage_cli.errors import CliError
from plumage_cli.local.processes.directory_server import WatchedDirectory


@pytest.fixture
async def running() -> AsyncIterator[WatchedDirectory]:
    with tempfile.TemporaryDirectory(prefix="plm-") as path:
        directory = WatchedDirectory(Path(path) / "d", 1 << 20)
        await directory.start()
        yield directory
        await directory.stop()


async def test_how_a_killed_server_ended_is_shown(running: WatchedDirectory) -> None:
    first = running.pid
    assert first is not None
    assert running.view["lastExit"] is None
    os.kill(first, signal.SIGKILL)
    await until(lambda: running.running and running.pid != first, pause=0.02)
    shown = running.view
    assert (shown["lastExit"], shown["restarts"], shown["replaced"]) == ("was ended by SIGKILL", 1, 0)


async def test_replaced_server_did_not_end_by_itself(running: WatchedDirectory) -> None:
    first = running.pid
    running.socket.unlink()
    await running.restart()
    shown = running.view
    assert running.pid != first
    assert running.socket.is_socket()
    assert (shown["lastExit"], shown["restarts"], shown["replaced"]) == (
        "was replaced, because its socket was deleted", 1, 1,
    )  # fmt: skip


async def test_end_that_both_watchers_notice_counts_once(running: WatchedDirectory) -> None:
    first = running.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: running.restarts == 1, pause=0.005)  # the other one waits before it starts a server
    await running.restart()
    second = running.pid
    await asyncio.sleep(0.6)  # longer than that wait
    assert running.pid == second != first
    assert (running.restarts, running.replaced) == (1, 0)


async def test_failed_restart_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = WatchedDirectory(tmp_path, 1 << 20)

    def fail() -> None:
        raise PlumageError("no memory")

    monkeypatch.setattr(directory._server, "start", fail)
    with pytest.raises(CliError, match="the directory's server did not start: no memory"):
        await directory.restart()
    assert directory.restarts == 1
