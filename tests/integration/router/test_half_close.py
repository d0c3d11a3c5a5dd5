"""A client may end its stream and wait for its answers; a closed client aborts its request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_half_closed_client_gets_answer(start: Any, kit: Any, stream: bool, version: bytes) -> None:
    running = await start(engines=1)
    engine, go = running.engines[0], asyncio.Event()

    async def later(seen: Any, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await engine.normally(seen, writer)

    engine.answer = later
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=stream)).replace(b"HTTP/1.1", b"HTTP/" + version))
    writer.write_eof()
    await kit.until(lambda: running.router.pool.in_flight)
    await asyncio.sleep(0.5)  # some ticks, at each of which it is looked at
    go.set()
    async with asyncio.timeout(30):
        everything = await reader.read()
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" if version == b"1.1" else b""
    assert everything.removeprefix(interim).startswith(b"HTTP/1.1 200 OK")
    assert b"one two" in everything or b"two " in everything
    await kit.until(lambda: not running.router.pool.connections)


async def test_half_closed_client_gets_all_pipelined_answers(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat()) * 5 + b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    writer.write_eof()
    async with asyncio.timeout(30):
        everything = await reader.read()
    assert everything.count(b"HTTP/1.1 200 OK") == 5
    assert everything.count(b"HTTP/1.1 4") == 0


async def test_closed_client_aborts_request(start: Any, kit: Any) -> None:
    running = await start(engines=1)

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    running.engines[0].answer = thinks
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat()))
    await kit.until(lambda: running.router.pool.in_flight)
    writer.close()
    await asyncio.wait_for(running.engines[0].closed.wait(), 30)
    await kit.until(lambda: not running.router.pool.connections)
