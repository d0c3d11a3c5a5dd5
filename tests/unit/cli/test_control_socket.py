"""The socket by which other commands reach a pool: what it does while the pool ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from plumage_cli.local.control import SOCKET, ControlServer
from plumage_cli.local.supervisor import Supervisor


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


async def test_ending_does_not_wait_for_a_scale_that_is_under_way(tmp_path: Path) -> None:
    pool = SlowPool(tmp_path)
    control = ControlServer(cast(Supervisor, pool))
    await control.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET)
    writer.write(json.dumps({"do": "scale", "replicas": 9}).encode() + b"\n")
    async with asyncio.timeout(20.0):
        await pool.scaling.wait()
        await control.stop()
        assert await reader.read() == b"", "whoever asked is told by the closed connection"
    writer.close()
