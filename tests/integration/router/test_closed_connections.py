"""A closed connection leaves nothing for the garbage collector, whose collections of old objects are rare."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

PARTS = {"DownstreamConnection", "RequestParser", "HttpRequestParser", "UpstreamConnection", "HttpResponseParser"}


def alive() -> Counter[str]:
    """Objects of connections, by class."""
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one).__name__ in PARTS)


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def until_gone(before: Counter[str]) -> Counter[str]:
    """What is there beyond `before`, after at most five seconds."""
    for _ in range(50):
        await asyncio.sleep(0.1)
        if not (more := alive() - before):
            break
    return more


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("stream", [False, True])
async def test_connections_are_freed_when_clients_close_them(start: Any, kit: Any, *, stream: bool) -> None:
    running = await start(engines=1)
    before = alive()
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(kit.request(kit.chat(stream=stream)))
        assert (await kit.read_answer(reader)).status == 200
        writer.close()
    await running.engines[0].stop()  # ends the idle connections to it
    assert await until_gone(before) == Counter()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("part", ["all", "half", "none"])
async def test_connections_are_freed_when_clients_leave(start: Any, kit: Any, part: str) -> None:
    running = await start(engines=1)
    running.engines[0].answer = kit.endless
    before = alive()
    whole: bytes = kit.request(kit.chat(stream=True))
    data = {"all": whole, "half": whole[: len(whole) // 2], "none": b"no HTTP\r\n\r\n"}[part]
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(data)
    if part == "half":
        await asyncio.sleep(0.1)
    else:
        assert await reader.read(1)
    writer.transport.abort()
    assert await until_gone(before) == Counter()
