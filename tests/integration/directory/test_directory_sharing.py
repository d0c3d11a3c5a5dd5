"""What routers and agents of one pool share: work in flight, pending owners, estimators, hotness.

Each runs on one server, on a Cluster of three, and over TLS as a user with only the rights that `connection` documents.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.directories import Sentinels, cluster_of_three, cluster_url, listens, locked_server

from plumage.directory.client.connection import close, connect
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.schema import PoolKeys
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.directory.sharing.shared_hash import MOST, MOST_BYTES, SharedHash
from plumage.directory.sharing.shared_stream import SharedStream
from plumage.directory.sharing.work_exchange import SILENCE
from plumage.directory.sharing.work_share import WorkShare
from plumage.routing import Lbgr
from plumage.routing.interface import Query, ReplicaState

RNG = random.Random(1)
CHAIN = [RNG.getrandbits(64) for _ in range(10)]
SLOTS = {"r0": 0, "r1": 1}


@dataclass
class Place:
    """A directory of some kind. url: for routers and agents. client: one with all rights."""

    url: str
    client: Any
    pool: str

    @property
    def keys(self) -> PoolKeys:
        return PoolKeys(self.pool)


Kind = tuple[str, Any]


@pytest.fixture(scope="module", params=["server", "cluster", "tls"])
def kind(request: pytest.FixtureRequest, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    if request.param == "cluster":
        with cluster_of_three(binary, tmp_path_factory.mktemp("cluster")) as ports:
            yield request.param, ports
    elif request.param == "tls":
        with locked_server(binary) as server:
            yield request.param, server
    else:
        with LocalServer(binary=binary) as server:
            yield request.param, server


@pytest.fixture
async def place(kind: Kind, request: pytest.FixtureRequest, relay_to: Any) -> AsyncIterator[Place]:
    name, found = kind
    pool = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    if name == "cluster":
        client: Any = connect(cluster_url(found))
        yield Place(cluster_url(found), client, pool)
    elif name == "server":
        client = connect(found.url)
        yield Place(found.url, client, pool)
    else:
        certificates: Path = request.getfixturevalue("certificates")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        port = await relay_to(found.socket).listen_tls(context)
        client = Redis.from_url(found.url, username="root", password="r00t", protocol=2)
        ca = certificates / "ca.pem"
        yield Place(f"rediss://agent:p%40ss%20word@127.0.0.1:{port}?ssl_ca_certs={ca}", client, pool)
    await close(client)


@asynccontextmanager
async def started(share: Any) -> AsyncIterator[Any]:
    share.start()
    try:
        yield share
    finally:
        await share.close()


class Router:
    """The parts of a router that share work."""

    def __init__(self, url: str, pool: str, slots: dict[str, int]) -> None:
        self.own: dict[int, float] = {}
        self.mirror = Mirror()
        self.policy = Lbgr(rng=random.Random(1))
        self.share = WorkShare(
            url, pool=pool, router="router", mirror=self.mirror, work=lambda: self.own, policies=lambda: (self.policy,)
        )
        self.share.set_replicas(slots)


@pytest.fixture
async def routers(place: Place) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def make(slots: dict[str, int] | None = None) -> Router:
            router = Router(place.url, place.pool, slots or SLOTS)
            await stack.enter_async_context(started(router.share))
            return router

        yield make


async def test_routers_see_work_of_others(routers: Any, until: Any) -> None:
    one, two, three = await routers(), await routers({"r1": 0, "r0": 7}), await routers()
    one.own = {0: 40.0, 1: 10.0}
    two.own = {0: 5.0}
    await until(lambda: set(three.share.foreign()) == {0, 1})
    found: dict[int, float] = {}

    def both() -> bool:  # the value shrinks as time passes, until it is sent again
        found.update(three.share.foreign())
        return found[0] > 36.0 and found[1] > 13.0

    await until(both)
    assert found[0] <= 40.0
    assert found[1] <= 15.0, "slots are each router's own; replicas are named on the wire"
    await until(lambda: set(two.share.foreign()) == {7, 0})
    await until(lambda: set(one.share.foreign()) == {1})
    assert one.share.foreign()[1] <= 5.0, "nobody counts its own work twice"
    one.own = {}
    await until(lambda: set(three.share.foreign()) == {1})


async def test_news_goes_out_at_once_but_once_a_period(place: Place, until: Any) -> None:
    news: list[int] = []
    calls = 0

    def make() -> dict[str, int] | None:
        nonlocal calls
        calls += 1
        return {"n": news.pop()} if news else None

    stream = SharedStream(place.url, place.keys.work, make=make, take=None, period=60.0, longest=10, lifetime=60)
    async with started(stream):
        await until(lambda: calls == 1)
        news += [1, 2]
        stream.hurry()
        await until(lambda: stream.counts["sent"] == 1)
        stream.hurry()
        await asyncio.sleep(0.2)
        assert (calls, news) == (2, [1])


async def test_policies_count_the_requests_of_other_routers(routers: Any, until: Any) -> None:
    """A request counts at the others, on the same replica, until its router is silent."""
    one, two = await routers(), await routers({"r1": 0, "r0": 1})
    await until(lambda: listens(two.share.stream))
    query = Query(0.0, 4000.0, {})
    one.policy.routed(query, one.policy.choose(query, [ReplicaState(0)]))
    one.share.changed()
    await until(lambda: two.policy._replicas and two.policy._replicas[1].backlog.others_requests == 1)
    assert two.policy._replicas[0].backlog.others_requests == 0
    assert one.policy._replicas[0].backlog.others_requests == 0
    await one.share.close()
    two.share.exchange.drop_silent(time.monotonic() + SILENCE + 0.1)
    assert two.policy._replicas[1].backlog.others_requests == 0


async def test_work_of_silent_router_expires(routers: Any, until: Any) -> None:
    one, two = await routers(), await routers()
    one.own = {0: 100.0}
    await until(lambda: 0 in two.share.foreign())
    await one.share.close()
    (_, heard_at), *_ = [pair for heard in two.share.exchange._heard.values() for pair in heard.values()]
    assert two.share.foreign(heard_at + 1.0)[0] == pytest.approx(99.0)
    assert two.share.foreign(heard_at + SILENCE + 0.1) == {}


async def test_pending_owner_is_shared_with_routers(routers: Any, until: Any) -> None:
    one, two = await routers(), await routers()
    await until(lambda: listens(two.share.stream))
    one.share.sent(CHAIN, 1, 5.0)
    await until(lambda: two.mirror.match(CHAIN) == {1: (10, 640)})
    assert two.mirror.pending == 10
    assert one.mirror.match(CHAIN) == {}, "one's own mirror is one's own business"


async def test_messages_about_unknown_replicas_are_ignored(routers: Any, until: Any) -> None:
    one, two = await routers({"other": 3}), await routers()
    one.own = {3: 50.0}
    one.share.sent(CHAIN, 3, 5.0)
    await until(lambda: two.share.stream.counts["read"] > 2)
    assert two.share.foreign() == {}
    assert two.mirror.match(CHAIN) == {}


async def test_malformed_messages_are_counted(routers: Any, until: Any, place: Place) -> None:
    router = await routers()
    await until(lambda: listens(router.share.stream))
    for fields in ({"v": 1, "d": b"\xff\xff"}, {"v": 1}, {"x": 1}, {"v": 2, "d": b""}):
        await place.client.xadd(place.keys.work, fields)
    counts = router.share.stream.counts
    await until(lambda: (counts["malformed"], counts["newer_schema"]) == (3, 1))


async def test_learned_state_of_each_router_is_kept(routers: Any, place: Place) -> None:
    one, two = await routers(), await routers()
    one.share.learned.mine = b"learned"
    await one.share.learned.exchange()
    await two.share.learned.exchange()
    (name, (age, value)), *others = two.share.learned.others.items()
    assert (name, value, others) == (one.share.name, b"learned", [])
    assert 0.0 <= age < 60.0
    await one.share.learned.exchange()
    assert one.share.learned.others == {}, "one's own word is no news"
    assert await place.client.pttl(place.keys.estimators) > 0


async def test_shared_state_has_age_bound_and_schema(place: Place) -> None:
    now = 1_000_000.0
    client: Any = connect(place.url)
    key = place.keys.tables("x")
    reader = SharedHash(client, key, "reader", lifetime=100, clock=lambda: now)
    for number in range(MOST + 10):
        writer = SharedHash(client, key, f"w{number}", lifetime=100, clock=lambda at=now - 1 - number: at)
        writer.mine = b"%d" % number
        await writer.exchange()
    reader.mine = bytes(MOST_BYTES + 1)
    for name, value in (("newer", b"\x02whatever"), ("torn", b"\x01\x00"), ("empty", b"")):
        await place.client.hset(key, name, value)
    await reader.exchange()
    assert reader.others == {f"w{number}": (1.0 + number, b"%d" % number) for number in range(MOST)}
    assert dict(reader.counts) == {"too_long": 1, "newer_schema": 1, "malformed": 2, "read": MOST}
    left = await place.client.hlen(key)
    assert left == MOST + 3, "those beyond the newest were removed; what can't be read is its writer's"
    now += 60.0
    await reader.exchange()
    assert len(reader.others) == 39, "the rest is past its lifetime"
    await close(client)


async def test_hotness_is_equal_at_all_participants(place: Place, until: Any) -> None:
    def share() -> Any:
        return started(HotnessShare(place.url, pool=place.pool, period=0.05))

    async with share() as one, share() as two:
        for who, uses in ((one, 3), (two, 5)):
            for _ in range(uses):
                who.request()
                who.use(CHAIN[0], 640)
        one.use(CHAIN[1], 64)
        await until(lambda: one.view.requests == two.view.requests == 8)
        assert one.view.to_bytes() == two.view.to_bytes()
        assert [(node.key, node.uses.frequency) for node in two.view.hottest(2)] == [(CHAIN[0], 8), (CHAIN[1], 1)]
        assert await one.store_view()
        assert not await two.store_view(), "one of them is enough"
        two.use(CHAIN[2], 64)
        await until(lambda: len(one.view) == 3)
        async with share() as late:
            await until(lambda: late.view.to_bytes() == one.view.to_bytes())
    assert await place.client.xlen(place.keys.hotness) <= 3, "what is in the stored view is dropped"
    for key in (place.keys.hotness, place.keys.hotness_view, place.keys.hotness_lock):
        assert await place.client.pttl(key) > 0


@pytest.mark.parametrize(
    ("stored", "counted"),
    [
        (bytes([2]) + b"1-0".ljust(32, b"\0") + b"of another form", "newer_schema"),
        (bytes([1]) + b"1-0".ljust(32, b"\0") + b"torn", "malformed"),
        (bytes([1]) + b"1-0", "malformed"),
        (b"", "malformed"),
    ],
    ids=["newer", "torn", "short", "empty"],
)
async def test_unreadable_stored_view_is_counted_and_stream_is_used(
    place: Place, until: Any, stored: bytes, counted: str
) -> None:
    await place.client.set(place.keys.hotness_view, stored)
    async with started(HotnessShare(place.url, pool=place.pool, period=0.05)) as share:
        share.use(CHAIN[0], 64)
        await until(lambda: len(share.view) == 1)
        counts = share.stream.counts
        assert (counts["newer_schema"], counts["malformed"]) == (int(counted[0] == "n"), int(counted[0] == "m"))


async def test_send_only_hotness_share_keeps_no_view(place: Place, until: Any) -> None:
    sender = HotnessShare(place.url, pool=place.pool, period=0.05, receive=False)
    async with started(HotnessShare(place.url, pool=place.pool, period=0.05)) as agent, started(sender):
        sender.use(CHAIN[0], 640, 4)
        sender.request(9)
        await until(lambda: agent.view.requests == 9)
        assert [(node.key, node.tokens) for node in agent.view.hottest(2)] == [(CHAIN[0], 640)]
        assert sender.stream.counts["read"] == len(sender.view) == 0


async def test_sharing_continues_after_failover(sentinels: Sentinels, until: Any) -> None:
    one, two = (Router(sentinels.url, "p", SLOTS) for _ in range(2))
    sender = HotnessShare(sentinels.url, pool="p", period=0.05, receive=False)
    agent = HotnessShare(sentinels.url, pool="p", period=0.05)
    async with started(one.share), started(two.share), started(sender), started(agent):
        one.own = {0: 40.0}
        sender.use(CHAIN[0], 640)
        await until(lambda: 0 in two.share.foreign() and len(agent.view) == 1)
        await asyncio.to_thread(sentinels.primary.stop)
        await until(lambda: one.share.stream.degraded or two.share.stream.degraded)
        one.own = {1: 40.0}

        def heard() -> bool:  # deltas sent during the outage may be lost, so uses are counted again and again
            sender.use(CHAIN[1], 64)
            return 1 in two.share.foreign() and len(agent.view) == 2

        await until(heard)
        assert not any(router.share.stream.degraded for router in (one, two))
        one.share.sent(CHAIN, 1, 5.0)
        await until(lambda: two.mirror.match(CHAIN) == {1: (10, 640)})
