"""A router's memory does not grow with the number of requests, and goes back to the system after large bodies."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.ports import free_port

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, Load, State
from plumage.directory.server.local_server import LocalServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WARM_UP = 6_000  # until every bounded table of the configuration below is full
REQUESTS = 20_000
BOUND = 10 << 20  # bytes: half a kilobyte a request
CLIENTS = 16
USAGE = '"usage":{"prompt_tokens":400,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":64}}'
WHOLE = '{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"}}],'
WHOLE += USAGE + "}"
PIECE = '{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}'
EVENTS = f'data: {PIECE}\n\ndata: {{"id":"c","choices":[],{USAGE}}}\n\ndata: [DONE]\n\n'


def response(content_type: str, body: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


class Engine(asyncio.Protocol):
    """Answers at once; a streamed answer where one was asked for."""

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        elif len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            stream = b'"stream": true' in body
            self._answer(response("text/event-stream", EVENTS) if stream else response("application/json", WHOLE))

    def _answer(self, answer: bytes) -> None:
        self._data = b""
        self._transport.write(answer)  # type: ignore[attr-defined]


async def ask(port: int, bodies: Iterator[bytes]) -> int:
    """One client: a request after the other on one connection; how many were answered with 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    good = 0
    for body in bodies:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        answer = await reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in answer:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        good += answer.startswith(b"HTTP/1.1 200")
    writer.close()
    return good


def bodies(number: int, rng: random.Random) -> Iterator[bytes]:
    """Most of them new, some repeated, half of them streamed, one in forty refused."""
    for index in range(number):
        text = f"{rng.randrange(10**9) if index % 4 else index % 100} " + "a long prompt " * 100
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "stream": index % 2 == 0}
        yield json.dumps(body | ({"surprise": 1} if index % 40 == 0 else {})).encode()


async def serve(port: int, number: int, rng: random.Random) -> int:
    """`number` requests from all clients together; how many were answered."""
    shared = bodies(number, rng)
    return sum(await asyncio.gather(*(ask(port, shared) for _ in range(CLIENTS))))


@pytest.fixture
async def engines() -> AsyncIterator[list[int]]:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Engine, "127.0.0.1", 0) for _ in range(2)]
    yield [server.sockets[0].getsockname()[1] for server in servers]
    for server in servers:
        server.close()


@pytest.fixture
def start_router(tmp_path: Path, engines: list[int]) -> Iterator[Callable[..., tuple[psutil.Process, int]]]:
    """A router as a process of its own, with small tables so that they fill early."""
    members = [{"id": f"chat-{n}", "url": f"http://127.0.0.1:{port}"} for n, port in enumerate(engines)]
    (tmp_path / "members.json").write_text(json.dumps({"pool": "chat", "replicas": members}))
    port, started = free_port(), []

    def start(directory_url: str | None, **limits: int) -> tuple[psutil.Process, int]:
        config = {
            "listen": {"port": port}, "pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
            "membershipFile": str(tmp_path / "members.json"), "directoryUrl": directory_url, "seed": 1,
            "policy": {"name": "Lbgr"}, "limits": {"maxDirectoryChunks": 5_000, **limits}, "auditSize": 500,
            "timeouts": {"pendingOwner": 1.0},
        }  # fmt: skip
        (tmp_path / "router.json").write_text(json.dumps(config))
        command = [sys.executable, "-m", "plumage_router", "--config", str(tmp_path / "router.json")]
        started.append(subprocess.Popen([*command, "--log-level", "ERROR"]))
        return psutil.Process(started[0].pid), port

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


async def listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def churn(writer: DirectoryWriter, rng: random.Random) -> None:
    """An agent that reports new chunks all the time and keeps a thousand."""
    held: list[int] = []
    writer.report(state=State.READY, load=Load())
    while True:
        fresh = [rng.getrandbits(64) for _ in range(50)]
        gone, held = held[:-950], [*held[-950:], *fresh]
        writer.publish([*(Change(chunk, 1, 64) for chunk in fresh), *(Change(chunk, 0) for chunk in gone)])
        await asyncio.sleep(0.05)


async def test_memory_does_not_grow_with_requests(start_router: Callable[..., tuple[psutil.Process, int]]) -> None:
    rng = random.Random(1)
    with LocalServer() as directory:
        router, port = start_router(directory.url)
        await listens(port)
        async with DirectoryWriter(directory.url, pool="chat", replica="chat-0") as writer:
            agent = asyncio.create_task(churn(writer, rng))
            assert await serve(port, WARM_UP, rng) == WARM_UP - WARM_UP // 40
            before = router.memory_info().rss
            assert await serve(port, REQUESTS, rng) == REQUESTS - REQUESTS // 40
            grown = router.memory_info().rss - before
            agent.cancel()
    assert grown < BOUND, f"{grown / REQUESTS:.0f} bytes a request were kept, {before >> 20} MiB before"


LARGE = 3 << 20  # bytes
BURST = 16  # bodies; together below what `free` keeps at the heap's end, so that nothing but a trim returns it


async def test_memory_of_large_bodies_returns_to_the_system(
    start_router: Callable[..., tuple[psutil.Process, int]],
) -> None:
    router, port = start_router(None, maxBodyBytes=16 << 20, maxBufferedBytes=256 << 20)
    await listens(port)
    assert await ask(port, bodies(20, random.Random(1))) == 19
    before = peak = router.memory_info().rss
    text = "word " * (LARGE // 5)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": text}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(BURST)]
    for _, writer in clients:
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body[:-1]))
        await writer.drain()
    async with asyncio.timeout(60):
        while peak - before < BURST * LARGE * 0.8:  # the router holds them all
            await asyncio.sleep(0.02)
            peak = max(peak, router.memory_info().rss)
    for _, writer in clients:
        writer.write(body[-1:])
    for reader, _ in clients:
        status = asyncio.create_task(reader.readuntil(b"\r\n"))
        while not status.done():
            await asyncio.wait([status], timeout=0.02)
            peak = max(peak, router.memory_info().rss)
        assert status.result().startswith(b"HTTP/1.1 400"), "longer than the model's context"
    async with asyncio.timeout(60):
        while router.memory_info().rss > peak - (peak - before) / 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for _, writer in clients:
        writer.close()
