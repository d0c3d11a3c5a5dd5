"""Connections are bounded in number, time and memory, whatever their clients do."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from support.needs import open_files


async def test_router_accepts_ten_thousand_connections(start: Any, kit: Any) -> None:
    """A hundred are served. The others wait or get a refusal with Retry-After, and do not disturb the served ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files(12_000)
    listen = {"port": 0, "backlog": 256}
    running = await start(engines=1, limits={"maxConnections": 100}, timeouts={"header": 600}, listen=listen)
    reader, writer = await running.connect()
    most = 0
    with ExitStack() as sockets:
        for number in range(10_000):
            sock = sockets.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", running.port))
            if number % 100 == 0:
                await asyncio.sleep(0.001)
                most = max(most, len(running.router.pool.connections))
        writer.write(kit.request(kit.chat()))
        assert (await asyncio.wait_for(kit.read_answer(reader), 60)).status == 200
    assert 100 < most < 100 + 128 + 2 * 256
    await kit.until(lambda: len(running.router.pool.connections) <= 100, 30)
    assert running.router.pool.metrics.errors["overloaded"] > 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_excess_connection_gets_retry_after(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxConnections": 2})
    first = await running.connect()
    await running.connect()
    await kit.until(lambda: len(running.router.pool.connections) == 2)
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
    first[1].close()
    await kit.until(lambda: len(running.router.pool.connections) < 2)
    assert (await running.post(kit.chat())).status == 200


async def test_accepting_pauses_and_resumes(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxConnections": 1})
    _, holder = await running.connect()
    await kit.until(lambda: running.router.pool.connections)
    crowd = [await running.connect() for _ in range(300)]
    await kit.until(lambda: running.router.pool.metrics.errors["overloaded"] > 128)
    for _, writer in (*crowd, (None, holder)):
        writer.transport.abort()
    await served_in_the_end(running.connect, kit)


async def test_too_many_requests_in_flight_are_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxInFlight": 1})

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    running.engines[0].answer = thinks
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat()))
    await kit.until(lambda: running.router.pool.in_flight)
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (503, "overloaded")


async def test_largest_arriving_body_is_refused_first(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxBufferedBytes": 20_000})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n"
    reader, holder = await running.connect()
    holder.write(head + b"x" * 8000)
    await kit.until(lambda: running.router.pool.body_memory.used == 8000)
    assert (await running.post(kit.chat("y" * 4000))).status == 200
    refused = await kit.read_answer(reader)
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "overloaded", "1")
    assert running.router.pool.body_memory.used == 0


@pytest.mark.parametrize(
    "begun", [b"", b"POST /v1/chat", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow"], ids=len
)
async def test_incomplete_head_times_out(start: Any, kit: Any, begun: bytes) -> None:
    running = await start(engines=1, timeouts={"header": 0.3})
    reader, writer = await running.connect()
    writer.write(begun)
    said = await asyncio.wait_for(reader.read(), 30)
    assert said.startswith(b"HTTP/1.1 408") if begun else said == b""
    await kit.until(lambda: not running.router.pool.connections)


async def test_slow_body_times_out(start: Any, kit: Any) -> None:
    """A byte now and then does not move the deadline."""
    running = await start(engines=1, timeouts={"header": 0.4, "body": 0.4})
    for begun in (b"POST /", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{"):
        reader, writer = await running.connect()
        writer.write(begun)
        answer = asyncio.create_task(reader.readline())  # read at once: a byte that crosses it resets the connection
        for _ in range(100):
            writer.write(b"x")
            if (await asyncio.wait([answer], timeout=0.02))[0]:
                break
        assert (await asyncio.wait_for(answer, 30)).startswith(b"HTTP/1.1 408")
    assert running.router.pool.body_memory.used == 0


async def test_idle_connection_is_closed(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"keepAlive": 0.3})
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat()))
    await kit.read_answer(reader)
    assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_client_that_never_reads_is_disconnected(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"write": 0.5})

    async def endless(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD)
        while True:
            writer.write(kit.chunked(kit.token("x" * 60_000)))
            await writer.drain()

    running.engines[0].answer = endless
    with socket.create_connection(("127.0.0.1", running.port)) as deaf:
        deaf.sendall(kit.request(kit.chat(stream=True)))
        await kit.until(lambda: running.router.pool.in_flight)
        await kit.until(lambda: not running.router.pool.in_flight)
    await asyncio.wait_for(running.engines[0].closed.wait(), 30)


async def test_long_answer_is_allowed(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"header": 0.5, "body": 0.5, "keepAlive": 0.5, "write": 0.5})
    engine = running.engines[0]

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.5)
        writer.write(engine.whole())

    engine.answer = slowly
    assert (await running.post(kit.chat())).status == 200


async def test_request_timeout_ends_request(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"request": 0.3})

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    running.engines[0].answer = thinks
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (504, "timeout")


async def test_unix_socket_serves(start: Any, kit: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "router.sock")
    running = await start(engines=1, listen={"port": None, "uds": path})
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(kit.request(kit.chat()))
    assert (await kit.read_answer(reader)).status == 200
    writer.transport.abort()
    await running.router.stop(drain_seconds=0)
    assert path not in map(str, tmp_path.iterdir())


async def test_pause_keeps_path_of_unix_socket(start: Any, kit: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "router.sock")
    running = await start(engines=1, listen={"port": None, "uds": path}, limits={"maxConnections": 1})
    crowd = [await asyncio.open_unix_connection(path) for _ in range(300)]
    await kit.until(lambda: running.router.pool.metrics.errors["overloaded"] > 128)
    for _, writer in crowd:
        writer.transport.abort()
    await served_in_the_end(lambda: asyncio.open_unix_connection(path), kit)


async def test_stop_finishes_answers_and_refuses_connections(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    go = asyncio.Event()

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("x")))
        await go.wait()
        writer.write(kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    running.engines[0].answer = slowly
    reader, writer = await running.connect()
    _, idle = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    await reader.readuntil(b"data: ")
    port = running.port
    stopping = asyncio.ensure_future(running.router.stop(drain_seconds=10))
    await kit.until(lambda: len(running.router.pool.connections) == 1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    go.set()
    assert b"[DONE]" in await asyncio.wait_for(reader.read(), 30)
    writer.close()
    idle.close()
    await asyncio.wait_for(stopping, 30)


async def test_request_may_come_in_two_halves(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    data = kit.request(kit.chat("x" * 3000))
    reader, writer = await running.connect()
    for at in range(0, len(data), 700):
        writer.write(data[at : at + 700])
        await asyncio.sleep(0.01)
    assert (await kit.read_answer(reader)).status == 200
    assert json.loads(running.engines[0].seen[0].body)["messages"][0]["content"] == "x" * 3000


async def served_in_the_end(connect: Callable[[], Awaitable[Any]], kit: Any) -> None:
    """Sends requests until one is served. A dead connection in the backlog counts for a moment when it is accepted; a
    request in that moment is refused or its connection closed."""
    for _ in range(1_000):
        reader, writer = await connect()
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                writer.write(kit.request(kit.chat()))
                answer = await kit.read_answer(reader)
            finally:
                writer.transport.abort()
            if answer.status == 200:
                return
            assert (answer.status, answer.error["code"]) == (503, "overloaded")
        await asyncio.sleep(0.02)
    pytest.fail("it is still overloaded by connections that are gone")
