"""Requests for LoRA adapters go to replicas that have the adapter loaded, or a slot for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Load, State
from plumage.directory.server.local_server import LocalServer
from plumage_router.clock import monotonic

MODEL = {"adapters": ["sql", "chess", "law"], "adapterSlots": 1}


def _asked(engine: Any) -> list[str]:
    return [seen.json["model"] for seen in engine.seen]


async def _open(running: Any, kit: Any, *models: str) -> list[asyncio.StreamWriter]:
    """A stream for each model, in turn, which stays open."""
    writers = []
    for model in models:
        reader, writer = await running.connect()
        writer.write(kit.request(kit.chat("hello", stream=True, model=model)))
        await reader.readuntil(b"data:")
        writers.append(writer)
    return writers


async def _fail(seen: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 no\r\ncontent-length: 2\r\n\r\nno")


async def _states(running: Any) -> dict[str, float]:
    names = ("Loaded", "FreeSlot", "Waits")
    return {name: await running.metric(f'plumage_router_adapter_requests_total{{state="{name}"}}') for name in names}


async def test_adapters_stay_where_they_are_loaded(start: Any, kit: Any) -> None:
    running = await start(engines=2, model=MODEL)
    first, second = running.engines
    first.answer = second.answer = kit.endless
    writers = await _open(running, kit, "sql", "chess", "sql", "chess", "chess", "sql", "tiny", "tiny")
    by_engine = [{name for name in _asked(engine) if name != "tiny"} for engine in running.engines]
    assert sorted(by_engine, key=sorted) == [{"chess"}, {"sql"}]
    assert [_asked(engine).count("tiny") for engine in running.engines] == [1, 1], "the base model needs no slot"
    assert await _states(running) == {"Loaded": 4, "FreeSlot": 2, "Waits": 0}
    for writer in writers:
        writer.transport.abort()


async def test_request_without_a_slot_is_served_and_counted(start: Any, kit: Any) -> None:
    running = await start(engines=2, model=MODEL)
    for engine in running.engines:
        engine.answer = kit.endless
    writers = await _open(running, kit, "sql", "chess", "law")
    assert await _states(running) == {"Loaded": 0, "FreeSlot": 2, "Waits": 1}
    for writer in writers:
        writer.transport.abort()
    await kit.until(lambda: not running.router.pool.in_flight)
    for engine in running.engines:
        engine.answer = engine.normally
    answers = [await running.post(kit.chat("hello", model="chess")) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    record = next(running.router.pool.decisions.audit.latest(1))
    assert record.document()["adapterState"] == "Loaded"
    assert "its adapter is loaded there" in record.why()


async def test_replica_that_lost_its_requests_has_a_free_slot(start: Any, kit: Any) -> None:
    running = await start(engines=1, model=MODEL)
    for model in ("sql", "chess", "chess"):
        assert (await running.post(kit.chat("hello", model=model))).status == 200
    assert await _states(running) == {"Loaded": 1, "FreeSlot": 2, "Waits": 0}


@pytest.mark.redis
async def test_adapters_that_other_routers_use_are_known_from_the_engines(start: Any, kit: Any) -> None:
    with LocalServer() as server:
        running = await start(engines=2, model=MODEL, directoryUrl=server.url)
        async with DirectoryWriter(server.url, pool="chat", replica="chat-1", heartbeat_seconds=0.2) as writer:
            writer.report(state=State.READY, load=Load(running=3, adapters=("sql",)))
            adapters = running.router.pool.decider.adapters
            slot = running.router.pool.fleet.get("chat-1").slot
            await kit.until(lambda: adapters.state("sql", slot) == "Loaded")
            for _ in range(3):
                assert (await running.post(kit.chat("hello", model="sql"))).status == 200
            assert [_asked(engine) for engine in running.engines] == [[], ["sql"] * 3]
            writer.report(state=State.READY, load=Load())
            await kit.until(lambda: adapters.state("chess", slot) == "FreeSlot")


@pytest.mark.redis
async def test_only_replica_with_the_adapter_is_asked_though_it_is_ejected(start: Any, kit: Any) -> None:
    """Others are available, but cannot answer. With an open breaker it is not asked, and the error says so."""
    with LocalServer() as server:
        running = await start(engines=2, model={**MODEL, "adapterSlots": 4}, directoryUrl=server.url)
        async with (
            DirectoryWriter(server.url, pool="chat", replica="chat-0", heartbeat_seconds=0.1) as first,
            DirectoryWriter(server.url, pool="chat", replica="chat-1", heartbeat_seconds=0.1) as second,
        ):
            first.report(state=State.READY, load=Load(served=()))
            second.report(state=State.READY, load=Load(served=("sql",)))
            pool = running.router.pool
            fleet, alone = pool.fleet, pool.fleet.get("chat-1")
            offered = lambda: len(pool.decider.adapters.serving("sql", [one.load for one in fleet]))  # noqa: E731
            await kit.until(lambda: offered() == 1)
            alone.breaker.eject(monotonic())
            fleet.changed()
            assert not any(load is alone.load for load in fleet.candidates(monotonic()))
            assert (await running.post(kit.chat("hello", model="sql"))).status == 200
            assert [len(engine.seen) for engine in running.engines] == [0, 1]
            alone.healthy = False
            fleet.changed()
            away = await running.post(kit.chat("hello", model="sql"))
            assert (away.status, away.json["error"]["code"]) == (503, "no_replica")
            assert "has loaded the adapter 'sql' can take the request: 1 of 1: its" in away.json["error"]["message"]
            law = await running.post(kit.chat("hello", model="law"))
            assert law.json["error"]["code"] == "adapter_not_loaded"


@pytest.mark.redis
async def test_requests_go_where_the_adapter_is_loaded(start: Any, kit: Any) -> None:
    """Also a retry: the second replica does not have the adapter."""
    with LocalServer() as server:
        running = await start(engines=2, model={**MODEL, "adapterSlots": 4}, directoryUrl=server.url)
        async with (
            DirectoryWriter(server.url, pool="chat", replica="chat-0", heartbeat_seconds=0.1) as first,
            DirectoryWriter(server.url, pool="chat", replica="chat-1", heartbeat_seconds=0.1) as second,
        ):
            first.report(state=State.READY, load=Load(served=("sql",)))
            second.report(state=State.READY, load=Load(served=("sql", "chess")))
            adapters, fleet = running.router.pool.decider.adapters, running.router.pool.fleet
            offered = lambda name: len(adapters.serving(name, [one.load for one in fleet]))  # noqa: E731
            await kit.until(lambda: [offered(name) for name in MODEL["adapters"]] == [2, 1, 0])
            assert [(await running.post(kit.chat("hello", model="chess"))).status for _ in range(4)] == [200] * 4
            assert [len(engine.seen) for engine in running.engines] == [0, 4]

            refused = await running.post(kit.chat("hello", model="law"))
            assert refused.status == 503
            assert refused.headers["retry-after"] == "5"
            assert refused.json["error"]["code"] == "adapter_not_loaded"
            assert "'law'" in refused.json["error"]["message"]
            assert sum(len(engine.seen) for engine in running.engines) == 4, "no engine is asked in vain"

            running.engines[1].answer = _fail
            failed = await running.post(kit.chat("hello", model="chess"))
            assert (failed.status, failed.json["error"]["code"]) == (502, "upstream_failed")
            assert not running.engines[0].seen

            second.report(load=Load(served=("sql", "chess", "law")))
            running.engines[1].answer = running.engines[1].normally
            await kit.until(lambda: offered("law") == 1)
            assert (await running.post(kit.chat("hello", model="law"))).status == 200
