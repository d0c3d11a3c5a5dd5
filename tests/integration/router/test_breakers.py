"""A failed replica gets no requests for a while, then one trial at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plumage_router.fleet.breaker import BreakerState


async def _dies(seen: Any, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_breaker_advances_without_requests(start: Any, kit: Any) -> None:
    breaker = {"failures": 1, "base": 0.1}
    running = await start(engines=2, timeouts={"probeInterval": 0.02}, breaker=breaker)
    running.engines[0].answer = _dies
    assert [(await running.post(kit.chat())).status for _ in range(2)] == [200, 200]
    replica = running.router.pool.fleet.get("chat-0")
    await kit.until(lambda: replica.breaker.state is BreakerState.HALF_OPEN)
    assert (replica.healthy, replica.shown_state) == (True, "Ready")


async def test_health_check_closes_open_breaker(start: Any, kit: Any) -> None:
    running = await start(engines=2, timeouts={"probeInterval": 0.1})
    dead, alive = running.engines
    await dead.stop()
    for _ in range(3):
        assert (await running.post(kit.chat())).status == 200
    replica = running.router.pool.fleet.get("chat-0")
    await kit.until(lambda: not replica.healthy)
    assert replica.reason(0.0) is not None
    before = len(alive.seen)
    await dead.start()
    await kit.until(lambda: replica.healthy and replica.breaker.state is BreakerState.CLOSED)
    for _ in range(4):
        await running.post(kit.chat())
    assert len(alive.seen) == before + 2


@pytest.mark.parametrize("status", [500, 401])
async def test_healthy_engine_that_fails_requests_gets_none(start: Any, kit: Any, status: int) -> None:
    breaker = {"failures": 3, "base": 3600, "cap": 3600}
    running = await start(engines=2, timeouts={"probeInterval": 0.02}, breaker=breaker)
    sick = running.engines[0]

    async def fails(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)

    sick.answer = fails
    for _ in range(12):
        assert (await running.post(kit.chat())).status == 200
        await kit.until(lambda seen=sick.connections: sick.connections > seen + 1)  # a health check came and went
    assert len(sick.seen) == 3
    assert running.router.pool.fleet.get("chat-0").healthy


async def test_unhealthy_engine_gets_no_requests(start: Any, kit: Any) -> None:
    running = await start(engines=2, timeouts={"probeInterval": 0.05})
    running.engines[0].healthy = False
    await kit.until(lambda: not running.router.pool.fleet.get("chat-0").healthy)
    for _ in range(4):
        await running.post(kit.chat())
    assert [len(engine.seen) for engine in running.engines] == [0, 4]
