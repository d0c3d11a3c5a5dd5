"""Slow clients get all of their answers, and few bytes wait for them. The test moves the clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.http.body_memory import BodyMemory
from plumage_router.http.downstream import LINGER, DownstreamConnection
from plumage_router.http.errors import RequestError
from plumage_router.http.request import Request

SIZE = 4_000_000  # far more than the system's buffers take
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class _Answers:
    """A handler that answers at once, with as many bytes as the host says."""

    def __init__(self, host: _Host, request: Request, connection: DownstreamConnection) -> None:
        self._host, self._request, self._connection = host, request, connection

    @property
    def answering(self) -> bool:
        return False

    def start(self) -> None:
        self._host.served += 1
        self._connection.respond(200, b"", b"x" * self._host.size, keep_alive=self._request.keep_alive)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...


class _Host:
    """A process with one connection, whose clock stands still until it is moved."""

    limits = LimitsConfig()
    timeouts = TimeoutsConfig(write=60.0, keep_alive=75.0)
    date = b""

    def __init__(self) -> None:
        self.tick = 1000.0
        self.body_memory = BodyMemory(self.limits.max_buffered_bytes)
        self.size = SIZE
        self.served = 0
        self.connection: DownstreamConnection | None = None

    def opened(self, connection: DownstreamConnection) -> RequestError | None:
        self.connection = connection
        return None

    def closed(self, connection: DownstreamConnection) -> None:
        self.connection = None

    def admit(self, request: Request) -> RequestError | None:
        return None

    def refused(self, error: RequestError) -> bytes:
        return b""

    def handler(self, request: Request, connection: DownstreamConnection) -> _Answers:
        return _Answers(self, request, connection)

    @property
    def left(self) -> float:
        """Seconds until the connection is cut."""
        assert self.connection is not None
        return self.connection.deadline - self.tick

    def pass_time(self, seconds: float) -> None:
        self.tick += seconds
        if self.connection is not None and self.connection.deadline < self.tick:
            self.connection.expire()


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def host() -> _Host:
    return _Host()


@pytest.fixture
async def connect(host: _Host) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """A client whose own buffers are small."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: DownstreamConnection(host, loop), "127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []

    async def begin() -> Client:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, server.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        writers.append(writer)
        return reader, writer

    yield begin
    for writer in writers:
        writer.transport.abort()
    if host.connection is not None:
        host.connection.transport.abort()
    server.close()


async def _answer(reader: asyncio.StreamReader, size: int = SIZE) -> bytes:
    await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(size)


async def test_last_answer_waits_for_slow_client(host: _Host, connect: Any, kit: Any) -> None:
    reader, writer = await connect()
    writer.write(CLOSE)
    await kit.until(lambda: host.served)
    host.pass_time(30.0)
    assert len(await _answer(reader)) == SIZE
    assert await reader.read() == b""
    await kit.until(lambda: host.left <= LINGER)
    host.pass_time(LINGER + 1)
    await kit.until(lambda: host.connection is None)


async def test_last_answer_wait_is_bounded(host: _Host, connect: Any, kit: Any) -> None:
    _, writer = await connect()
    writer.write(CLOSE)
    await kit.until(lambda: host.served)
    host.pass_time(61.0)
    await kit.until(lambda: host.connection is None)


async def test_truncated_answer_waits_for_slow_client(host: _Host, connect: Any, kit: Any) -> None:
    reader, writer = await connect()
    writer.write(GET)
    await kit.until(lambda: host.served)
    assert host.connection is not None
    host.connection.cut()
    host.pass_time(30.0)
    assert len(await _answer(reader)) == SIZE
    assert await reader.read() == b""


async def test_refused_client_has_one_second_to_close(host: _Host, connect: Any, kit: Any) -> None:
    """What it had to take before does not earn it the time of a client between two requests."""
    reader, writer = await connect()
    writer.write(GET + b"NONSENSE\r\n\r\n")
    await kit.until(lambda: host.served)
    await _answer(reader)
    assert b" 400 " in await reader.readline()
    await reader.read()
    await kit.until(lambda: host.left <= LINGER)


async def test_requests_wait_until_client_reads(host: _Host, connect: Any, kit: Any) -> None:
    reader, writer = await connect()
    for _ in range(5):
        writer.write(GET)
        await asyncio.sleep(0.02)
    await kit.until(lambda: host.served)
    assert host.connection is not None
    assert host.connection.transport.get_write_buffer_size() < SIZE + 1000
    assert host.served == 1
    for _ in range(5):
        await _answer(reader)
    assert host.served == 5


async def test_excess_pipelined_requests_stay_unread(host: _Host, connect: Any, kit: Any) -> None:
    reader, writer = await connect()
    requests = 40 * host.limits.max_pipelined
    writer.write(GET * requests)
    await kit.until(lambda: host.served)
    host.size = 10
    await _answer(reader)
    for _ in range(requests - 1):
        assert await _answer(reader, 10) == b"x" * 10
    assert host.served == requests


async def test_slow_client_may_read_before_next_request(host: _Host, connect: Any, kit: Any) -> None:
    reader, writer = await connect()
    writer.write(GET)
    await kit.until(lambda: host.served)
    await _answer(reader)
    await kit.until(lambda: host.left > 70)
    host.pass_time(70.0)
    writer.write(CLOSE)
    assert len(await _answer(reader)) == SIZE
