"""Pipelines over one persistent connection: replies belong to their commands, also after a failed pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import ResponseError

from plumage.directory.client.connection import UNAVAILABLE, close, connect
from plumage.directory.client.redis_pipeline import RedisPipeline
from plumage.directory.client.tasks import end

pytestmark = pytest.mark.redis


@pytest.fixture
async def pipeline(relay: Any) -> AsyncIterator[RedisPipeline]:
    client = connect(relay.url)
    found = RedisPipeline(client, seconds=2.0)
    yield found
    await found.close()
    await close(client)


async def test_refused_command_keeps_other_replies(pipeline: RedisPipeline) -> None:
    commands = [("SET", "a", 2**64 - 1), ("INCR", "a"), ("SET", "b", 0.25), ("GET", b"b"), ("NOSUCH",), ("GET", "a")]
    found = await pipeline.execute(commands)
    assert [found[0], found[2], found[3], found[5]] == [b"OK", b"OK", b"0.25", str(2**64 - 1).encode()]
    assert all(isinstance(found[number], ResponseError) for number in (1, 4))
    assert await pipeline.execute([]) == []


async def test_cancelled_pipeline_leaves_no_reply(pipeline: RedisPipeline, relay: Any) -> None:
    await pipeline.execute([("SET", "a", "1")])
    relay.flowing.clear()
    task = asyncio.create_task(pipeline.execute([("GET", "a")]))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    relay.flowing.set()
    assert await pipeline.execute([("SET", "b", "2"), ("GET", "b")]) == [b"OK", b"2"]


async def test_silent_server_times_out_and_recovers(pipeline: RedisPipeline, relay: Any) -> None:
    await pipeline.execute([("SET", "a", "1")])
    relay.flowing.clear()
    with pytest.raises(UNAVAILABLE):
        await pipeline.execute([("GET", "a")])
    relay.flowing.set()
    relay.cut()
    assert await pipeline.execute([("GET", "a")]) == [b"1"], "a connection that failed is not kept"


async def test_cut_connection_fails_one_pipeline(pipeline: RedisPipeline, relay: Any) -> None:
    await pipeline.execute([("SET", "a", "1")])
    relay.cut()
    await asyncio.sleep(0.05)
    with pytest.raises(UNAVAILABLE):
        await pipeline.execute([("GET", "a")])
    assert await pipeline.execute([("GET", "a")]) == [b"1"]


async def test_returned_connection_keeps_its_timeout(relay: Any) -> None:
    client = connect(f"{relay.url}?socket_timeout=1")
    pipeline = RedisPipeline(client, seconds=1.0)
    await pipeline.execute([("SET", "a", "1")])
    relay.flowing.clear()
    with pytest.raises(UNAVAILABLE):
        await pipeline.execute([("GET", "a")])
    task = asyncio.create_task(client.get("a"))
    try:
        done, _ = await asyncio.wait([task], timeout=20.0)
        assert done, "nothing else bounds the client's own commands"
        assert isinstance(task.exception(), UNAVAILABLE)
    finally:
        await end([task])
        await close(client)
