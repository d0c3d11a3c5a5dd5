"""Ten thousand open connections are served in bounded memory; more are refused."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.needs import open_files
from support.ports import free_port

CONNECTIONS = 10_000  # half the default: the clients' ends are files of this process
BATCH = 500  # well below the listening socket's queue
A_CONNECTION = 10_000  # bytes of the router's memory; about 3,300 are used
BEGUN = b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: 1\r\n"
NO_WAIT = struct.pack("ii", 1, 0)  # of SO_LINGER: ten thousand ports shall not stay taken after the test


@dataclass
class Control:
    """A connection that stays open, to ask the router how many it has."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    kit: Any

    async def connections(self) -> int:
        self.writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        text = (await self.kit.read_answer(self.reader)).body.decode()
        (line,) = (line for line in text.splitlines() if line.startswith("plumage_router_connections "))
        return int(line.split()[1])

    async def sees(self, number: int) -> None:
        async with asyncio.timeout(60):
            while await self.connections() != number:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.02)


@pytest.fixture
def files() -> Iterator[None]:
    """Enough open files for this process; the router, a child, inherits them and raises its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files(CONNECTIONS + 2_000)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def engine(kit: Any) -> AsyncIterator[Any]:
    engine = kit.Engine("chat-0")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def router(engine: Any, files: None, tmp_path: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A router as a process of its own, and its port. A begun request may take as long as this test does."""
    members = tmp_path / "members.json"
    members.write_text(
        json.dumps({"pool": "chat", "replicas": [{"id": "chat-0", "url": f"http://127.0.0.1:{engine.port}"}]})
    )
    port = free_port()
    config = {"listen": {"port": port}, "pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
              "membershipFile": str(members), "limits": {"maxConnections": CONNECTIONS},
              "timeouts": {"header": 600, "keepAlive": 600}}  # fmt: skip
    (tmp_path / "router.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "plumage_router", "--config", str(tmp_path / "router.json")]
    process = subprocess.Popen([*command, "--log-level", "ERROR"])
    yield psutil.Process(process.pid), port
    process.kill()
    process.wait(60)


@pytest.fixture
async def control(router: tuple[psutil.Process, int], kit: Any) -> AsyncIterator[Control]:
    async with asyncio.timeout(60):
        while True:
            try:
                found = Control(*await asyncio.open_connection("127.0.0.1", router[1]), kit)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
    yield found
    found.writer.transport.abort()


def begun(port: int) -> socket.socket:
    """A client that has sent the first lines of a request."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_WAIT)
    sock.sendall(BEGUN)
    return sock


async def answered(port: int, kit: Any) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(kit.request(kit.chat()))
    async with asyncio.timeout(30):
        answer = await kit.read_answer(reader)
    writer.transport.abort()
    return answer


async def test_router_serves_with_ten_thousand_open_connections(
    router: tuple[psutil.Process, int], control: Control, kit: Any
) -> None:
    process, port = router
    async with asyncio.timeout(60):
        while (await answered(port, kit)).status != 200:  # noqa: ASYNC110 - until it has seen its replica
            await asyncio.sleep(0.05)
    await control.sees(1)
    before = process.memory_info().rss
    with ExitStack() as stack:
        crowd: list[socket.socket] = []
        while len(crowd) < CONNECTIONS - 1:
            fresh = range(min(BATCH, CONNECTIONS - 1 - len(crowd)))
            crowd += [stack.enter_context(begun(port)) for _ in fresh]
            await control.sees(1 + len(crowd))
        grown = process.memory_info().rss - before
        assert grown < CONNECTIONS * A_CONNECTION, f"{grown / CONNECTIONS:,.0f} bytes a connection"

        refused = await answered(port, kit)
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "overloaded", "1")
        assert "Too many connections" in refused.error["message"]
        crowd[0].sendall(kit.request(kit.chat()).partition(b"\r\n")[2])  # the rest of a request that was begun
        assert (await asyncio.to_thread(crowd[0].recv, 65_536)).startswith(b"HTTP/1.1 200 OK\r\n")
        crowd.pop().close()
        await control.sees(CONNECTIONS - 1)
        assert (await answered(port, kit)).status == 200
    await control.sees(1)
    assert (await answered(port, kit)).status == 200
