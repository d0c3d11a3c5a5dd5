"""The control socket of a pool while the pool ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plumage_cli.local.control import server as control
from plumage_cli.local.control.server import ControlServer
from plumage_cli.local.folder.pool_folder import CONTROL_SOCKET
from plumage_cli.local.pool.supervisor import Supervisor


class SlowPool:
    """A supervisor whose new replicas never become ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = SimpleNamespace(path=folder)
        self.scaling = asyncio.Event()

    async def scale(self, replicas: int) -> None:
        self.scaling.set()
        await asyncio.Event().wait()

    def view(self) -> dict[str, Any]:
        return {"pool": "chat"}


async def test_shutdown_does_not_wait_for_a_running_scale(tmp_path: Path) -> None:
    pool = SlowPool(tmp_path)
    server = ControlServer(cast(Supervisor, pool))
    await server.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / CONTROL_SOCKET)
    writer.write(json.dumps({"do": "scale", "replicas": 9}).encode() + b"\n")
    async with asyncio.timeout(20.0):
        await pool.scaling.wait()
        await server.stop()
        assert await reader.read() == b"", "the closed connection is the answer"
    writer.close()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[None]:
    server = ControlServer(cast(Supervisor, SlowPool(folder)))
    await server.start()
    try:
        async with asyncio.timeout(20.0):
            yield
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"[" * 60_000 + b"\n", "a request must be one line of JSON"),
        (b"\xff\xfe\n", "a request must be one line of JSON"),
        ('{"do": "status"}'.encode("utf-16") + b"\n", "a request must be one line of JSON"),
        (b'{"do": "scale", "replicas": ' + b"9" * 5000 + b"}\n", "a request must be one line of JSON"),
        (b"\n", "a request must be one line of JSON"),
        (b"x" * 70_000 + b"\n", "a request may have at most 65,536 bytes"),
        (b"[1]\n", "unknown request"),
        (b'{"do": "scale", "replicas": 1001}\n', "unknown request"),
    ],
)
async def test_every_request_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request_: bytes, message: str
) -> None:
    async with serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / CONTROL_SOCKET)
        writer.write(request_)
        assert json.loads(await reader.read()) == {"error": message}
        writer.close()
    assert caplog.records == []


async def test_held_connections_print_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_REQUEST_SECONDS", 0.01)
    async with serving(tmp_path):
        held = [await asyncio.open_unix_connection(tmp_path / CONTROL_SOCKET) for _ in range(101)]
        for reader, writer in held:
            assert json.loads(await reader.read()) == {"error": "no request arrived within 0.01 s"}
            writer.close()
    assert caplog.records == []


async def test_clients_that_do_not_wait_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(writer: asyncio.StreamWriter) -> None:
        raise BrokenPipeError("gone")

    monkeypatch.setattr(asyncio.StreamWriter, "drain", lost)
    async with serving(tmp_path):
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(tmp_path / CONTROL_SOCKET)
            writer.write(b'{"do": "status"}\n')
            await reader.read()
            writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "a client of the control socket did not wait for its reply: gone"
    ]
