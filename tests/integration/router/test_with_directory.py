"""A router with a real directory: it follows agents' reports, and works without them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.directories import listens

from plumage.directory.mirror import snapshot_loader
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, Load, State
from plumage.directory.server.local_server import LocalServer
from plumage_router.directory import link

pytestmark = pytest.mark.redis

PROMPT = "The same long beginning. " * 200


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
async def agents(server: LocalServer) -> AsyncIterator[list[DirectoryWriter]]:
    """Two agents that say Ready."""
    writers = [DirectoryWriter(server.url, pool="chat", replica=f"chat-{n}", heartbeat_seconds=0.2) for n in range(2)]
    for writer in writers:
        await writer.__aenter__()
        writer.report(state=State.READY, load=Load())
    yield writers
    for writer in writers:
        await writer.__aexit__(None, None, None)


def _chain(running: Any, body: Any) -> list[int]:
    reader = running.router.pool.reader
    return list(reader.read(b"/v1/chat/completions", json.dumps(body).encode()).chunks)


async def _hold(running: Any, kit: Any, writer: DirectoryWriter, chunks: list[int], slot: int) -> None:
    writer.publish([Change(chunk, 1, 60 * depth) for depth, chunk in enumerate(chunks, 1)])
    await kit.until(lambda: running.router.pool.decider.mirror.match(chunks).get(slot, (0, 0))[0] == len(chunks))


async def test_requests_follow_reported_prefixes(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter]
) -> None:
    running = await start(engines=2, directoryUrl=server.url, policy={"name": "PrefixAware"})
    await kit.until(lambda: not running.router.pool.directory.degraded)
    chunks = _chain(running, kit.chat(PROMPT))
    await _hold(running, kit, agents[1], chunks, running.router.pool.fleet.get("chat-1").slot)
    for _ in range(3):
        assert (await running.post(kit.chat(PROMPT))).status == 200
    assert [len(engine.seen) for engine in running.engines] == [0, 3]
    record = next(running.router.pool.decisions.audit.latest(1))
    assert (record.hit_tokens, record.degraded) == (60 * len(chunks), False)
    totals = running.router.pool.fleet.get("chat-1").totals
    assert (totals.hit_error, totals.compared_tokens) == (
        totals.predicted_hit_tokens - totals.hit_tokens,
        totals.prompt_tokens,
    )
    assert totals.compared_tokens > 0
    gaps = running.router.pool.directory.hit_gaps
    gaps._next = 0.0  # a new window
    await kit.until(lambda: gaps.ratios)
    metrics = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    assert 'plumage_router_hit_gap_ratio{replica="chat-1"} ' in metrics
    agents[1].publish([Change(chunk, 0) for chunk in chunks])
    slot = running.router.pool.fleet.get("chat-1").slot
    await kit.until(lambda: slot not in running.router.pool.decider.mirror.match(chunks))


async def test_agents_report_load_and_state(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter]
) -> None:
    running = await start(engines=2, directoryUrl=server.url)
    first, second = running.router.pool.fleet.get("chat-0"), running.router.pool.fleet.get("chat-1")
    agents[0].report(load=Load(running=3, waiting=2, kv_usage=0.5))
    await kit.until(lambda: (first.load.running, first.load.waiting, first.load.kv_usage) == (3, 2, 0.5))
    agents[1].report(state=State.DRAINING)
    await kit.until(lambda: second.shown_state == "Draining")
    for _ in range(3):
        await running.post(kit.chat())
    assert [len(engine.seen) for engine in running.engines] == [3, 0]
    agents[1].report(state=State.READY)
    agents[0].report(state=State.STALLED)
    await kit.until(lambda: first.shown_state == "Stalled" and second.shown_state == "Ready")
    await running.post(kit.chat())
    assert [len(engine.seen) for engine in running.engines] == [3, 1]


async def test_cache_of_other_model_folder_is_unknown(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter], caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(engines=2, directoryUrl=server.url, policy={"name": "PrefixAware"})
    chunks = _chain(running, kit.chat(PROMPT))
    await _hold(running, kit, agents[1], chunks, running.router.pool.fleet.get("chat-1").slot)
    first = running.router.pool.fleet.get("chat-0")
    await kit.until(lambda: first.cache_known)
    await agents[0].close()
    ours, counts = running.router.pool.directory.sync._engine, running.router.pool.directory.sync.counts
    async with DirectoryWriter(
        server.url, pool="chat", replica="chat-0", engine=ours[:-16] + "0" * 16, heartbeat_seconds=0.2
    ) as other:
        other.publish([Change(chunk, 1, 60 * depth) for depth, chunk in enumerate(chunks, 1)])
        other.report(state=State.READY, load=Load(running=3))
        await kit.until(lambda: counts["other_model"] > 1)
        await kit.until(lambda: first.load.running == 3)
        assert not first.cache_known
        assert first.slot not in running.router.pool.decider.mirror.match(chunks)
        assert first.shown_state == "Ready", "its cache is unknown, the replica is not lost"
    [message] = [record.getMessage() for record in caplog.records if "same model folder" in record.getMessage()]
    assert "chat-0 serves" in message
    assert ours in message
    metrics = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    assert f"plumage_router_directory_other_model_total {counts['other_model']}" in metrics
    async with DirectoryWriter(server.url, pool="chat", replica="chat-0", engine=ours, heartbeat_seconds=0.2) as again:
        again.publish([Change(chunk, 1, 60 * depth) for depth, chunk in enumerate(chunks, 1)])
        await kit.until(lambda: first.slot in running.router.pool.decider.mirror.match(chunks))


async def test_directory_outage_costs_no_request(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter]
) -> None:
    running = await start(engines=2, directoryUrl=server.url, policy={"name": "PrefixAware"})
    await kit.until(lambda: not running.router.pool.directory.degraded)
    chunks = _chain(running, kit.chat(PROMPT))
    slot = running.router.pool.fleet.get("chat-1").slot
    await _hold(running, kit, agents[1], chunks, slot)
    await asyncio.to_thread(server.stop)
    await kit.until(lambda: running.router.pool.directory.degraded)
    for _ in range(4):
        assert (await running.post(kit.chat(PROMPT))).status == 200
    assert len(running.engines[1].seen) == 4, "what was known is still used"
    for _ in range(2):
        assert (await running.post(kit.chat("another " * 200))).status == 200
    record = next(running.router.pool.decisions.audit.latest(1))
    assert record.matched_chunks > 0, "alone, the router goes by what it sent where"
    await asyncio.to_thread(server.start)
    await kit.until(lambda: not running.router.pool.directory.degraded, 60)
    assert (await running.post(kit.chat(PROMPT))).status == 200
    await kit.until(lambda: running.router.pool.decider.mirror.match(chunks).get(slot, (0, 0))[0] == len(chunks), 60)


async def test_router_is_ready_once_it_has_loaded_the_caches(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first requests would go anywhere else. Members and replicas are there before."""
    load, read = asyncio.Event(), snapshot_loader.read_snapshot

    async def read_later(*snapshot: Any) -> None:
        await load.wait()
        await read(*snapshot)

    monkeypatch.setattr(snapshot_loader, "read_snapshot", read_later)
    agents[1].publish([Change(chunk, 1, 60) for chunk in range(1, 50)])
    await kit.until(lambda: all(one.epoch is not None and not one.behind for one in agents))
    first = await start(engines=2, directoryUrl=server.url)
    pool = first.router.pool
    await kit.until(
        lambda: pool.membership.listed and pool.fleet.candidates(pool.tick) and "snapshot_new" in counts(pool)
    )
    answer = await first.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (answer.status, answer.body) == (503, b"the replicas' caches are being loaded")
    assert (await first.post(kit.chat())).status == 200, "who asks anyway is served"
    load.set()
    await kit.until(lambda: pool.ready)
    slot = pool.fleet.get("chat-1").slot
    assert pool.decider.mirror.match([1]).get(slot, (0, 0))[0] == 1


async def test_router_is_ready_after_a_while_without_the_caches(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_never(*snapshot: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(snapshot_loader, "read_snapshot", read_never)
    monkeypatch.setattr(link, "_FIRST_LOAD", 1.0)
    await kit.until(lambda: all(one.epoch is not None and not one.behind for one in agents))
    running = await start(engines=2, directoryUrl=server.url)
    await kit.until(lambda: running.router.pool.ready)
    assert not running.router.pool.directory.sync.caught_up


def counts(pool: Any) -> Any:
    return pool.directory.sync.counts


async def test_router_starts_without_directory(start: Any, kit: Any, tmp_path: Path) -> None:
    running = await start(engines=2, directoryUrl=f"unix://{tmp_path}/nobody.sock")
    for _ in range(4):
        assert (await running.post(kit.chat())).status == 200
    assert running.router.pool.directory.degraded
    assert b"plumage_router_degraded 1" in (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body


async def test_routers_count_each_others_work(
    start: Any, kit: Any, server: LocalServer, agents: list[DirectoryWriter]
) -> None:
    one = await start(engines=2, directoryUrl=server.url, policy={"name": "PrefixAware"})
    other = await start(engines=2, directoryUrl=server.url, policy={"name": "PrefixAware"})
    slots = [running.router.pool.fleet.get("chat-0").slot for running in (one, other)]
    await kit.until(lambda: not (one.router.pool.directory.degraded or other.router.pool.directory.degraded))
    await kit.until(lambda: listens(other.router.pool.directory.work.stream))
    chunks = _chain(one, kit.chat(PROMPT))
    assert (await one.post(kit.chat(PROMPT))).status == 200
    chosen = next(one.router.pool.decisions.audit.latest(1)).replica
    slot = other.router.pool.fleet.get(chosen).slot
    await kit.until(lambda: other.router.pool.decider.mirror.match(chunks).get(slot, (0, 0))[0] == len(chunks))

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    one.router.pool.decider.seconds_per_token = 0.01
    for engine in one.engines:
        engine.answer = thinks
    _, writer = await one.connect()
    writer.write(kit.request(kit.chat("busy " * 500)))
    await kit.until(lambda: sum(other.router.pool.fleet.loads[slot].foreign_work for slot in slots) > 0.1)
