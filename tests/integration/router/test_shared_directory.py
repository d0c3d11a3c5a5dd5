"""What a router shares with others: estimates, accesses, and counts of unreadable values."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from support.directories import listens

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import SCHEMA_VERSION, Change, Keys, Load, PoolKeys, State
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.routing.interface import Query, ReplicaState
from plumage_router.clock import monotonic

pytestmark = pytest.mark.redis

PROMPT = "The same long beginning. " * 200
PREFIX = "plumage_router_directory_"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[Redis]:
    found: Redis = Redis.from_url(server.url, protocol=2)
    yield found
    await found.aclose()


async def _metrics(running: Any) -> dict[str, float]:
    page = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    lines = (line.rpartition(" ") for line in page.splitlines() if line.startswith(PREFIX))
    return {name.removeprefix(PREFIX): float(value) for name, _, value in lines}


async def test_new_router_starts_from_shared_estimates(
    start: Any, kit: Any, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumage.directory.sharing.work_share.EXCHANGE_EVERY", 0.2)
    monkeypatch.setattr("plumage_router.directory.policy_sharing.INTERVAL", 0.2)
    old = await start(engines=2, directoryUrl=server.url, policy={"name": "Lbgr"})
    policy = old.router.pool.decider.policy
    speeds = {"chat-0": 0.2, "chat-1": 0.8}
    for name, speed in speeds.items():
        _train(policy, old.router.pool.fleet.get(name).slot, speed)
    new = await start(engines=2, directoryUrl=server.url, policy={"name": "Lbgr"})
    learning = new.router.pool.directory.policy_sharing
    await kit.until(lambda: learning.counts["adopted"] == len(speeds))
    for name in speeds:
        shared = policy.learned(old.router.pool.fleet.get(name).slot)
        there = new.router.pool.decider.policy._replicas[new.router.pool.fleet.get(name).slot]
        assert there.adopted == there.ttft.updates >= 20
        assert there.backlog.c_miss == pytest.approx(shared.c_miss, rel=0.1)
    assert (await _metrics(new))["estimators_adopted_total"] == len(speeds)
    for running in (old, new):  # a third replica comes, and only the old router has requests there
        running.engines.append(await _engine(kit, "chat-2"))
        running.write_members()
    await kit.until(lambda: old.router.pool.fleet.get("chat-2") and new.router.pool.fleet.get("chat-2"))
    _train(policy, old.router.pool.fleet.get("chat-2").slot, 0.4)
    await kit.until(lambda: learning.counts["adopted"] == 3)
    begun = new.router.pool.decider.policy._replicas[new.router.pool.fleet.get("chat-2").slot]
    assert begun.backlog.c_miss == pytest.approx(0.4, rel=0.2)
    third = await start(engines=0, directoryUrl=server.url, policy={"name": "Lbgr"})
    await kit.until(lambda: third.router.pool.directory.work.learned.rounds)
    third.engines.extend(new.engines)
    third.write_members()
    await kit.until(lambda: third.router.pool.directory.policy_sharing.counts["adopted"] == 3)


def _train(policy: Any, slot: int, speed: float) -> None:
    """Requests of a thousand tokens at `speed` seconds each."""
    now = monotonic()
    for _ in range(60):
        query = Query(now, 1000.0, {})
        ticket = policy.routed(query, policy.choose(query, [ReplicaState(slot)]))
        now += speed
        policy.first_token(ticket, now)
        policy.finished(ticket, now, 0.0)


async def _engine(kit: Any, name: str) -> Any:
    engine = kit.Engine(name)
    await engine.start()
    return engine


async def test_matched_prefixes_are_published(start: Any, kit: Any, server: LocalServer) -> None:
    running = await start(engines=1, directoryUrl=server.url)
    body = kit.chat(PROMPT)
    chunks = list(running.router.pool.reader.read(b"/v1/chat/completions", json.dumps(body).encode()).chunks)
    agent = HotnessShare(server.url, pool="chat", period=0.05)
    async with DirectoryWriter(server.url, pool="chat", replica="chat-0", heartbeat_seconds=0.2) as writer:
        writer.report(state=State.READY, load=Load())
        writer.publish([Change(chunk, 1, 60 * depth) for depth, chunk in enumerate(chunks[:5], 1)])
        await kit.until(lambda: running.router.pool.decider.mirror.match(chunks))
        agent.start()
        try:
            await kit.until(lambda: not agent.stream.degraded)
            assert (await running.post(body)).status == 200
            assert (await running.post(kit.chat("Nothing like it. " * 100))).status == 200
            await kit.until(lambda: agent.view.requests == 2)
            assert [(node.key, node.tokens, node.uses.frequency) for node in agent.view.hottest(9)] == [
                (chunks[4], 300, 1)
            ]
        finally:
            await agent.close()
    assert (await _metrics(running))["hotness_deltas_total"] >= 1


async def test_unreadable_values_are_counted_and_ignored(
    start: Any, kit: Any, server: LocalServer, client: Redis
) -> None:
    running = await start(engines=2, directoryUrl=server.url, policy={"name": "Lbgr"})
    await kit.until(lambda: not running.router.pool.directory.degraded)
    await kit.until(lambda: listens(running.router.pool.directory.work.stream))
    clean = await _metrics(running)
    for part in ("mirror", "work", "estimators", "hotness"):
        assert clean[f'newer_schema_total{{part="{part}"}}'] == 0
    pool, newer = PoolKeys("chat"), SCHEMA_VERSION + 1
    await client.hset(Keys("chat", "chat-0").beat, mapping={"v": newer, "shape": "unheard of"})
    await client.hset(Keys("chat", "chat-1").beat, mapping={"v": SCHEMA_VERSION, "epoch": "no number"})
    await client.xadd(pool.work, {"v": newer, "d": b"?"})
    await client.xadd(pool.work, {"v": SCHEMA_VERSION, "d": b"?"})
    await client.hset(pool.estimators, mapping={"newer": bytes([newer]) * 20, "torn": b"\x01"})
    counts = running.router.pool.directory
    await kit.until(lambda: counts.sync.counts["newer_schema"] and counts.sync.counts["malformed"])
    await kit.until(lambda: counts.work.learned.counts["newer_schema"] and counts.work.stream.counts["malformed"])
    found = await _metrics(running)
    for part in ("mirror", "work", "estimators"):
        assert found[f'newer_schema_total{{part="{part}"}}'] >= 1, part
        assert found[f'malformed_total{{part="{part}"}}'] >= 1, part
    assert (await running.post(kit.chat())).status == 200


async def test_gaps_snapshots_and_outages_are_counted(start: Any, kit: Any, server: LocalServer, client: Redis) -> None:
    running = await start(engines=1, directoryUrl=server.url)
    # A heartbeat notices the foreign entry and begins a new log; the router has to see the gap before that.
    async with DirectoryWriter(server.url, pool="chat", replica="chat-0", heartbeat_seconds=30) as writer:
        writer.publish([Change(7, 1, 60)])
        mirror = running.router.pool.decider.mirror
        await kit.until(lambda: mirror.match([7]))
        found = await _metrics(running)
        assert found['snapshots_total{reason="new"}'] == 1
        assert found['snapshots_total{reason="gap"}'] == 0
        log = Keys("chat", "chat-0").log(writer.epoch or "")
        last = (await client.xinfo_stream(log))["last-generated-id"].decode()
        await client.xadd(
            log, {"v": 1, "r": b""}, id=f"{int(last.split('-')[0]) + 5}-0"
        )  # entries are missing before it
        await kit.until(lambda: running.router.pool.directory.sync.counts["snapshot_gap"])
        assert (await _metrics(running))['snapshots_total{reason="gap"}'] >= 1
        server.stop()
        await kit.until(lambda: running.router.pool.directory.sync.counts["failures"])
        assert (await _metrics(running))['failures_total{part="mirror"}'] >= 1


async def test_directory_metrics_are_zero_without_directory(start: Any) -> None:
    running = await start(engines=1)
    found = await _metrics(running)
    assert found['newer_schema_total{part="mirror"}'] == 0
    assert not any(found.values())
