"""The pool's hotness reaches an engine that uses it for ranking, and no other engine."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr
from support.agents import BOS, TEXT, ask, running, settings, until

from plumage.directory.client.tasks import end
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.hashing.chunks import chain, seed
from plumage_engine.agent.directory.pool_hotness import PoolHotness
from plumage_engine.agent.engine.client import EngineClient
from plumage_engine.agent.engine_updates import promotion
from plumage_engine.agent.engine_updates.promotion import PromotionSender
from plumage_engine.agent.http.stats import agent_stats
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.agent.index.local_hotness import LocalHotness
from plumage_engine.kv_events import BlockStored

pytestmark = pytest.mark.redis

TOKEN = "engine-token"
BLOCK = 32


class RankingEngine:
    """The route of vLLM's plugin. status: of its answers; words: the bodies that it received."""

    def __init__(self) -> None:
        self.status, self.words, self.asked = 204, [], 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.asked += 1
                allowed = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/v1/plumage/promote"
                status = owner.status if allowed else 401
                if status == 204:
                    owner.words.append(msgspec.json.decode(body, type=dict[str, dict[int, float]])["uses"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def ranking() -> Iterator[RankingEngine]:
    engine = RankingEngine()
    yield engine
    engine.close()


class Cache:
    """An engine's blocks as the agent knows them: chains with one token for each byte, named by their first block."""

    def __init__(self) -> None:
        self.index = CacheIndex("tiny", TEXT.table, 1000, LocalHotness(0))
        self.chunks: dict[str, list[int]] = {}
        self.blocks: dict[str, list[int]] = {}

    def hold(self, name: str, blocks: int) -> None:
        rng = random.Random(name)
        ids = [rng.randrange(300, 600) for _ in range(BLOCK * blocks)]
        keys = [rng.getrandbits(63) for _ in range(blocks)]
        self.index.apply(BlockStored(keys, None, ids, BLOCK, None, "GPU"))
        self.blocks[name] = keys
        self.chunks[name] = chain(b"".join(TEXT.table.parts(ids, True)), seed("tiny"))


@asynccontextmanager
async def linked(directory: LocalServer, pool: str, engine: Any, cache: Cache, **more: Any) -> AsyncIterator[Any]:
    """The parts of an agent that pass hotness to its engine, and a router that shares hotness."""
    client = EngineClient(engine.url, SecretStr(TOKEN))
    hotness = PoolHotness(directory.url, pool, cache.index.hotness, random.Random(1))
    router = HotnessShare(directory.url, pool=pool, period=0.05, receive=False)
    link = PromotionSender(client, hotness, cache.index, **{"period": 0.05, "rest": 0.05, **more})
    hotness.start()
    router.start()
    task = asyncio.create_task(link.run())
    try:
        yield router, link
    finally:
        await end([task])
        await router.close()
        await hotness.close()
        await client.close()


def used(router: HotnessShare, chunk: int, times: int) -> None:
    for _ in range(times):
        router.request()
        router.use(chunk, 100)


async def test_engine_gets_pool_hotness_of_its_blocks(directory, ranking) -> None:
    cache = Cache()
    cache.hold("hot", 30)
    cache.hold("warm", 30)
    cache.hold("unknown to the pool", 30)
    hot, warm = cache.chunks["hot"], cache.chunks["warm"]
    async with linked(directory, "ranked", ranking, cache) as (router, link):
        used(router, hot[-1], 20)
        used(router, hot[3], 5)
        used(router, warm[1], 2)
        used(router, 12345, 9)  # another replica has that
        await until(lambda: link.counts["sent"] >= 1 and len(ranking.words[-1]) > 30, lambda: link.counts)
    uses = ranking.words[-1]
    mine = [uses.get(key, 0) for key in cache.blocks["hot"]]
    assert mine == sorted(mine, reverse=True), "who used a prefix used all on the way to its end"
    assert mine[0] == 25
    assert mine[-2] == 20
    assert uses[cache.blocks["warm"][0]] == 2
    assert not set(cache.blocks["unknown to the pool"]) & set(uses)
    assert set(uses) <= {*cache.blocks["hot"], *cache.blocks["warm"]}
    assert link.counts["sent"] >= 1
    assert link.counts["failures"] == link.counts["unwanted"] == 0


async def test_message_is_bounded_to_hottest_blocks(directory, ranking, monkeypatch) -> None:
    monkeypatch.setattr(promotion, "MOST", 10)
    cache = Cache()
    cache.hold("hot", 20)
    cache.hold("cold", 20)
    async with linked(directory, "bounded", ranking, cache) as (router, _):
        used(router, cache.chunks["cold"][-1], 1)
        used(router, cache.chunks["hot"][-1], 3)
        await until(lambda: any(len(word) == 10 for word in ranking.words))
        await until(lambda: set(ranking.words[-1]) <= set(cache.blocks["hot"]))
    assert all(len(word) <= 10 for word in ranking.words)


async def test_engine_without_ranking_gets_few_requests(directory, ranking) -> None:
    cache = Cache()
    cache.hold("hot", 20)
    ranking.status = 404
    async with linked(directory, "stock", ranking, cache, rest=0.1) as (router, link):
        used(router, cache.chunks["hot"][-1], 3)
        await until(lambda: link.counts["unwanted"] >= 3)
        assert link.counts["sent"] == link.counts["failures"] == 0
        ranking.status = 204  # it restarted, now with the plugin
        await until(lambda: link.counts["sent"] >= 1)
    assert ranking.words[0] == {}, "an engine that may not support it gets an empty body first"


async def test_errors_are_counted_and_retried(directory, ranking) -> None:
    cache = Cache()
    cache.hold("hot", 20)
    ranking.status = 503
    async with linked(directory, "errors", ranking, cache, rest=60.0) as (router, link):
        used(router, cache.chunks["hot"][-1], 3)
        await until(lambda: link.counts["failures"] >= 2)
        ranking.status = 204
        await until(lambda: link.counts["sent"] >= 1)
    assert link.counts["unwanted"] == 0


async def test_directory_outage_stops_sending(ranking, tmp_path: Path) -> None:
    cache = Cache()
    cache.hold("hot", 20)
    with LocalServer() as directory:
        async with linked(directory, "away", ranking, cache) as (router, link):
            used(router, cache.chunks["hot"][-1], 3)
            await until(lambda: link.counts["sent"] >= 1)
            directory.stop()
            await until(lambda: link.counts["held_back"] >= 2)
            sent = link.counts["sent"]
            await until(lambda: link.counts["held_back"] >= 6)
            assert link.counts["sent"] == sent, "stale hotness must expire in the engine"


async def test_simulator_refusal_is_counted(directory: LocalServer, make_engine: Callable[..., Any]) -> None:
    engine = make_engine(device={"timeScale": 0.05})
    async with running(settings(directory, "simulated", engine)) as agent:
        await until(lambda: agent_stats(agent)["promote"]["unwanted"] == 1, partial(agent_stats, agent))
        await ask(engine, BOS + "a prompt " * 20)
        assert agent_stats(agent)["promote"]["failures"] == 0
