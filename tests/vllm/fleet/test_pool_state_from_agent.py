"""What a real vLLM gets from the pool through its agent: hotness for host memory, and learned tables of others. The
agent reports an engine whose device does not respond. A missing directory does not affect the engine."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import httpx
import psutil
import pytest
from redis.asyncio import Redis
from support.agents import served, until
from support.ports import free_port
from tests.vllm.fleet.conftest import Served

from plumage.batching.stop.shared import pack
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.schema import SCHEMA_VERSION, PoolKeys, State
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.directory.sharing.shared_hash import HEAD
from plumage.hashing.chunks import chain, seed
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.stats import agent_stats
from plumage_engine.agent.tokenizer import read_tokenizer

pytestmark = pytest.mark.redis

LEARNED = [[7, 3, 9, "Add", 10.0, 5000.0], [7, 3, 9, "Stop", 12.0, 12000.0]]


@pytest.fixture
def directory() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@asynccontextmanager
async def beside(engine: Served, directory: LocalServer, pool: str, **changes: Any) -> AsyncIterator[Agent]:
    agent = Agent(engine.agent(directory, pool, **changes), read_tokenizer(str(engine.model)), random.Random(1))
    agent.promotion._period = agent.tables._period = 0.2  # seconds; the defaults are ten and five
    agent.start()
    try:
        await until(lambda: agent.watch.state is State.READY, partial(agent_stats, agent))
        yield agent
    finally:
        await agent.close()


def prose(number: int, letters: int = 1400) -> str:
    rng = random.Random(number)
    return "".join(rng.choice("abcdefgh ") for _ in range(letters))


async def ask(engine: Served, prompt: str) -> int:
    """The cached prompt tokens."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0}
    async with httpx.AsyncClient(base_url=engine.url, timeout=120, headers=engine.headers) as http:
        usage = (await http.post("/v1/completions", json=body)).raise_for_status().json()["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def counted(engine: Served, name: str) -> int:
    return sum(engine.stats()["counters"].get(name, {}).values())


async def test_pool_hotness_admits_prefix_at_first_uses(with_plugin: Served, directory: LocalServer) -> None:
    """A prefix must be used ten times, here or at other replicas, before it is copied to host memory."""
    hot, cold = prose(1), prose(2)
    chunks = chain(("<|bos|>" + hot).encode(), seed("tiny"))
    router = HotnessShare(directory.url, pool="hot", period=0.05, receive=False)
    async with beside(with_plugin, directory, "hot") as agent:
        router.start()
        for prompt in (hot, cold):
            await ask(with_plugin, prompt)
        before = counted(with_plugin, "host_admissions")
        for _ in range(50):
            router.request()
            router.use(chunks[-1], 1280)
        await until(lambda: agent.promotion.counts["blocks"] >= 90, partial(agent_stats, agent))
        assert with_plugin.stats()["rankedChunks"] >= 30
        for turn in range(2):
            await ask(with_plugin, f"{cold}{turn}")
        assert counted(with_plugin, "host_admissions") == before
        for turn in range(2):
            await ask(with_plugin, f"{hot}{turn}")
        grown = counted(with_plugin, "host_admissions") - before
        await router.close()
    assert grown >= 30


async def test_warmed_engine_has_hot_prompt_cached(with_plugin: Served, fresh: Served, directory: LocalServer) -> None:
    """Another engine's agent asks this one's agent for hot prefixes, and lets its engine compute them before it is
    Ready."""
    hot = prose(7)
    async with beside(with_plugin, directory, "warm") as first, served(first, free_port()) as peer:
        for turn in range(4):
            await ask(with_plugin, f"{hot}{turn} {prose(70 + turn, 100)}")
        await until(lambda: bool(first.hottest(10_000).prefixes), partial(agent_stats, first))
        async with beside(fresh, directory, "warm", replica="chat-1", warmup={"peers": [peer]}) as second:
            assert second.watch.warmup is not None
            assert second.watch.warmup.prefixes >= 1, second.watch.warmup
            assert await ask(fresh, prose(8)) < 100
            assert await ask(fresh, f"{hot} never asked before") > 1000


async def test_directory_tables_are_merged_and_damaged_ones_refused(
    with_plugin: Served, directory: LocalServer
) -> None:
    with with_plugin.admin() as http:
        fingerprint = (await asyncio.to_thread(http.get, "/v1/plumage/tables")).json()["fingerprint"]
    key, head = PoolKeys("learned").tables(fingerprint), HEAD.pack(SCHEMA_VERSION, time.time())
    offered = {"other": head + pack(LEARNED), "vandal": head + b"\xc1\xc1", "half": head + pack(LEARNED)[:-3]}
    before = counted(with_plugin, "tables_refused")
    async with Redis.from_url(directory.url) as client:
        await client.hset(key, mapping=offered)
        async with beside(with_plugin, directory, "learned") as agent:
            await until(lambda: agent.tables.counts["applied"] == 1, partial(agent_stats, agent))
            assert agent.tables.counts["malformed"] >= 2
            own = await sent(client, key)
    rows = await learned(with_plugin)
    assert all(row in rows for row in LEARNED)
    assert own is not None, "what it knows is offered to others in turn"
    assert counted(with_plugin, "tables_refused") == before, "a damaged table never came to the engine"


async def sent(client: Redis, key: str) -> bytes | None:
    for _ in range(200):
        found = await client.hgetall(key)
        mine = [value for name, value in found.items() if name.startswith(b"chat-0.")]
        if mine:
            return bytes(mine[0])
        await asyncio.sleep(0.05)
    return None


async def test_killed_directory_does_not_affect_engine(with_plugin: Served, directory: LocalServer) -> None:
    """The agent follows the engine, and sends everything that was missed to a restarted directory."""
    known, before = prose(90), with_plugin.stats()
    await ask(with_plugin, known)
    async with beside(with_plugin, directory, "away") as agent:
        kill(directory)
        await until(lambda: agent.writer.degraded, partial(agent_stats, agent))
        last = agent.stream.last
        assert await ask(with_plugin, known) > 1000
        for number in range(91, 94):
            assert await ask(with_plugin, prose(number)) < 100
        await until(lambda: agent.stream.last >= last + 3, partial(agent_stats, agent))
        assert agent.watch.state is State.READY
        now = with_plugin.stats()
        assert now["counters"].get("failures") == before["counters"].get("failures")
        assert all(feature["on"] for feature in now["features"].values()), now["features"]
        await asyncio.to_thread(directory.start)
        async with DirectorySync(directory.url, pool="away", mirror=Mirror(10_000), poll_seconds=0.05) as sync:
            sync.set_replicas({"chat-0": 0})
            await until(lambda: sync.view("chat-0").state is State.READY, partial(agent_stats, agent))
            heard = sync._replicas["chat-0"].reader
            await until(lambda: heard.count == agent.writer.held.count > 0, partial(agent_stats, agent))


def kill(directory: LocalServer) -> None:
    """As the kernel would if memory is short."""
    assert directory._process is not None
    beneath = psutil.Process(directory._process.pid).children()
    next(one for one in beneath if "server" in one.name()).kill()  # redis-server or valkey-server
    directory._process.wait(60)


async def learned(engine: Served) -> list[list[object]]:
    with engine.admin() as http:
        rows: list[list[object]] = (await asyncio.to_thread(http.get, "/v1/plumage/tables")).json()["rows"]
    return rows


@contextmanager
def standing_still(engine: Served) -> Iterator[None]:
    """The engine core and its device make no step; the API server still answers."""
    (server,) = psutil.Process(engine.server.pid).children()
    (core,) = [one for one in server.children() if "resource_tracker" not in " ".join(one.cmdline())]
    os.kill(core.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(core.pid, signal.SIGCONT)


async def test_stopped_device_is_reported_as_stalled(with_plugin: Served, directory: LocalServer) -> None:
    body = {"model": "tiny", "prompt": [5] * 64, "max_tokens": 1200, "stream": True, "ignore_eos": True}
    async with (
        beside(with_plugin, directory, "still", stalledSeconds=1.0) as agent,
        httpx.AsyncClient(base_url=with_plugin.url, timeout=300, headers=with_plugin.headers) as http,
        http.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)  # from now on the API server reports a request in the engine
        with standing_still(with_plugin):
            await until(lambda: agent.watch.state is State.STALLED, partial(agent_stats, agent))
            assert agent.watch.load.running == 1
            with with_plugin.admin() as fleet:
                response = await asyncio.to_thread(fleet.get, "/v1/plumage/stats")
            assert response.status_code == 503
            assert "engine core did not answer in time" in response.json()["error"]["message"]
        await until(lambda: agent.watch.state is State.READY, partial(agent_stats, agent))
        assert sum([1 async for line in lines if line.startswith("data: {")]) > 100, "the answer goes on"
