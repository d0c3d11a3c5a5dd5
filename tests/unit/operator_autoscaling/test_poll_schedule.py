"""A pool that a HorizontalPodAutoscaler or KEDA scales: its figures are fresh whenever they are requested, and nothing
polls its pods where nobody requests them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from support.reporting_pool import World, report, running

from plumage_operator.autoscaling import AutoscalingLoop
from plumage_operator.autoscaling.poll_schedule import REQUESTED_RECENTLY, PollSchedule
from plumage_operator.external_metrics import add_pool_page, pool_samples

CHAT, OTHER = ("models", "chat"), ("models", "other")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, spec={"replicas": 2})


def offered(world: World, loop: AutoscalingLoop) -> TestClient[Any, Any]:
    app = web.Application()
    add_pool_page(app, lambda: pool_samples(loop.scalers), requested=loop.requested, clock=lambda: world.now)
    return TestClient(TestServer(app))


async def passes(world: World, loop: AutoscalingLoop, seconds: int) -> int:
    """Lets time pass, with a round every two seconds as in the operator. Returns the number of polls."""
    before = len(world.asked)
    for _ in range(seconds // 2):
        world.now += 2
        report(world, int(world.now))
        await loop.round()
    return (len(world.asked) - before) // (1 + world.replicas)


async def asks(client: TestClient[Any, Any]) -> dict[str, Any]:
    answer = await client.get("/v1/plumage/pools/models/chat")
    found: dict[str, Any] = await answer.json()
    return found


async def test_repeated_requests_keep_metrics_fresh(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop, offered(world, loop) as client:
        await passes(world, loop, 300)
        await asks(client)
        for _ in range(20):
            await passes(world, loop, 16)
            assert "totalTokensPerSecond" in await asks(client)


async def test_requested_pool_at_zero_wakes_as_soon(world: World, tmp_path: Path) -> None:
    world.replicas = 0
    async with running(world, tmp_path) as loop, offered(world, loop) as client:
        assert await passes(world, loop, 60) <= 2
        await asks(client)
        assert await passes(world, loop, 60) >= 29


async def test_one_scrape_is_forgotten(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop, offered(world, loop) as client:
        assert await passes(world, loop, 600) <= 11
        await asks(client)
        assert 12 <= await passes(world, loop, int(REQUESTED_RECENTLY)) <= 14
        assert await passes(world, loop, 600) <= 11


def test_only_the_requested_pool_is_polled_more_often() -> None:
    schedule = PollSchedule()
    for pool in (CHAT, OTHER):
        schedule.start(pool, 0.0)
        schedule.record(pool, scaled=False, asleep=False)
    schedule.requested(CHAT, 1.0)
    assert [schedule.due(pool, 15.0) for pool in (CHAT, OTHER)] == [True, False]
    assert schedule.due(OTHER, 60.0)


def test_unknown_pools_are_not_kept() -> None:
    schedule = PollSchedule()
    schedule.requested(CHAT, 0.0)
    schedule.start(CHAT, 1.0)
    schedule.record(CHAT, scaled=False, asleep=False)
    assert not schedule.due(CHAT, 16.0), "a request before the pool existed does not count"
    schedule.retain({OTHER})
    assert schedule.due(CHAT, 2.0), "a pool of this name would be new"
