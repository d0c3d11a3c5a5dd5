"""What routers and agents of one pool tell one another: work in flight, pending owners, estimators, hotness."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from plumage.directory.hotness import HotnessShare
from plumage.directory.mirror import Mirror
from plumage.directory.schema import PoolKeys
from plumage.directory.server import LocalServer
from plumage.directory.work import SILENCE, WorkShare

RNG = random.Random(1)
CHAIN = [RNG.getrandbits(64) for _ in range(10)]
SLOTS = {"r0": 0, "r1": 1}


@asynccontextmanager
async def started(share: Any) -> AsyncIterator[Any]:
    share.start()
    try:
        yield share
    finally:
        await share.close()


class Router:
    """As much of a router as shares work."""

    def __init__(self, url: str, slots: dict[str, int]) -> None:
        self.own: dict[int, float] = {}
        self.mirror = Mirror()
        self.share = WorkShare(url, pool="p", router="router", mirror=self.mirror, work=lambda: self.own)
        self.share.set_replicas(slots)


@pytest.fixture
async def routers(server: LocalServer) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def make(slots: dict[str, int] | None = None) -> Router:
            router = Router(server.url, slots or SLOTS)
            await stack.enter_async_context(started(router.share))
            return router

        yield make


async def test_routers_see_one_anothers_work(routers: Any, until: Any) -> None:
    one, two, three = await routers(), await routers({"r1": 0, "r0": 7}), await routers()
    one.own = {0: 40.0, 1: 10.0}
    two.own = {0: 5.0}
    await until(lambda: set(three.share.foreign()) == {0, 1})
    found: dict[int, float] = {}

    def both() -> bool:  # it shrinks as time passes, until it is told anew
        found.update(three.share.foreign())
        return found[0] > 36.0 and found[1] > 13.0

    await until(both)
    assert found[0] <= 40.0
    assert found[1] <= 15.0, "slots are each router's own; replicas are named on the wire"
    assert set(two.share.foreign()) == {7, 0}
    assert set(one.share.foreign()) == {1}, "nobody counts its own work twice"
    one.own = {}
    await until(lambda: set(three.share.foreign()) == {1})


async def test_work_drains_and_a_silent_router_is_forgotten(routers: Any, until: Any) -> None:
    one, two = await routers(), await routers()
    one.own = {0: 100.0}
    await until(lambda: 0 in two.share.foreign())
    await one.share.close()
    (_, heard_at), *_ = [pair for heard in two.share._heard.values() for pair in heard.values()]
    assert two.share.foreign(heard_at + 1.0)[0] == pytest.approx(99.0)
    assert two.share.foreign(heard_at + SILENCE + 0.1) == {}


async def test_a_pending_owner_is_pending_at_every_router(routers: Any, until: Any) -> None:
    one, two = await routers(), await routers()
    await until(lambda: not two.share.exchange.degraded)
    one.share.sent(CHAIN, 1, 5.0)
    await until(lambda: two.mirror.match(CHAIN) == {1: (10, 640)})
    assert two.mirror.pending == 10
    assert one.mirror.match(CHAIN) == {}, "one's own mirror is one's own business"


async def test_what_is_said_of_unknown_replicas_is_passed_over(routers: Any, until: Any) -> None:
    one, two = await routers({"other": 3}), await routers()
    one.own = {3: 50.0}
    one.share.sent(CHAIN, 3, 5.0)
    await until(lambda: two.share.exchange.counts["read"] > 2)
    assert two.share.foreign() == {}
    assert two.mirror.match(CHAIN) == {}


async def test_messages_that_are_none_are_counted(routers: Any, until: Any, client: Redis) -> None:
    router = await routers()
    await until(lambda: not router.share.exchange.degraded)
    for fields in ({"v": 1, "d": b"\xff\xff"}, {"v": 1}, {"x": 1}, {"v": 2, "d": b""}):
        await client.xadd(PoolKeys("p").work, fields)
    counts = router.share.exchange.counts
    await until(lambda: (counts["malformed"], counts["newer_schema"]) == (3, 1))


async def test_estimators_are_offered(routers: Any, until: Any) -> None:
    one, two = await routers(), await routers()
    one.share.offer(b"learned")
    await one.share._exchange_offers()
    await two.share._exchange_offers()
    assert two.share.offers == {one.share.name: b"learned"}
    await one.share._exchange_offers()
    assert one.share.offers == {}


async def test_hotness_is_the_same_everywhere(server: LocalServer, until: Any, client: Redis) -> None:
    def share() -> Any:
        return started(HotnessShare(server.url, pool="p", period=0.05))

    async with share() as one, share() as two:
        for who, uses in ((one, 3), (two, 5)):
            for _ in range(uses):
                who.request()
                who.use(CHAIN[0], 640)
        one.use(CHAIN[1], 64)
        await until(lambda: one.view.requests == two.view.requests == 8)
        assert one.view.to_bytes() == two.view.to_bytes()
        assert [(node.key, node.heat.frequency) for node in two.view.hottest(2)] == [(CHAIN[0], 8), (CHAIN[1], 1)]
        assert await one.store_view()
        assert not await two.store_view(), "one of them is enough"
        two.use(CHAIN[2], 64)
        await until(lambda: len(one.view) == 3)
        async with share() as late:
            await until(lambda: late.view.to_bytes() == one.view.to_bytes())
    assert await client.xlen(PoolKeys("p").heat) <= 3, "what is in the stored view is dropped"
    for key in (PoolKeys("p").heat, PoolKeys("p").heat_view, PoolKeys("p").heat_turn):
        assert await client.pttl(key) > 0
