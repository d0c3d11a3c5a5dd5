"""A stream must begin and continue in time; other answers may take longer."""

from __future__ import annotations

import asyncio
from typing import Any


async def test_late_first_byte_is_retried(start: Any, kit: Any) -> None:
    running = await start(engines=2, timeouts={"firstByte": 0.3})
    asleep = asyncio.Event()

    async def never(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(b": still here\n\n"))
        await asleep.wait()

    running.engines[0].answer = never
    answers = [await running.post(kit.chat(stream=True)) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert all(b"chat-1" in answer.body for answer in answers)
    assert running.router.pool.metrics.retries["first_byte_timeout"] >= 1
    asleep.set()


async def test_answer_without_stream_has_no_first_byte_timeout(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"firstByte": 0.1, "idle": 0.1})
    plain = running.engines[0].answer

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.6)
        await plain(seen, writer)

    running.engines[0].answer = slowly
    assert (await running.post(kit.chat())).status == 200
    assert not running.router.pool.metrics.retries


async def test_stopped_stream_is_cut(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"idle": 0.3})
    asleep = asyncio.Event()

    async def stops(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("half")))
        await asleep.wait()

    running.engines[0].answer = stops
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    async with asyncio.timeout(30):
        everything = await reader.read()
    assert everything.count(b"half") == 1
    assert b'"truncated"' in everything
    assert not everything.endswith(b"0\r\n\r\n"), "a cut stream must not look whole"
    asleep.set()
    writer.close()
