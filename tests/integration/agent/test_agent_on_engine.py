"""One agent beside one simulated engine, with a real directory server. The tests assert what a router would read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from support.agents import BOS, ask, running, served, settings, until
from support.ports import free_port
from support.scrapes import families

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync, ReplicaStatus
from plumage.directory.schema import SCHEMA_VERSION, PoolKeys, State
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.hashing.chunks import chain, seed
from plumage.models import resolve
from plumage.rendering import ChatRenderer, ModelFolder
from plumage.settings.router_config import ModelConfig
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.engine.engine_metrics import EngineLoad
from plumage_engine.agent.http.access import Access
from plumage_engine.agent.http.routes import make_app
from plumage_engine.agent.http.stats import agent_stats
from plumage_engine.agent.index.block import last_chunk
from plumage_engine.agent.lifecycle.state_watch import StateWatch
from plumage_router.request.model import load_model

pytestmark = pytest.mark.redis


def prose(number: int, words: int = 500) -> str:
    rng = random.Random(number)
    return "".join(rng.choice(("the ", "cache ", "holds ", "a ", "prefix, ", "é🙂 ", "日本 ")) for _ in range(words))


def chunks_of(prompt: str, salt: str = "") -> list[int]:
    return chain((BOS + prompt).encode(), seed("tiny", salt=salt))


class Router:
    """What a router knows of the replica through the directory."""

    def __init__(self, sync: DirectorySync) -> None:
        self.sync = sync

    @property
    def view(self) -> ReplicaStatus:
        return self.sync.view("chat-0")

    def hit(self, prompt: str, salt: str = "") -> tuple[int, int]:
        """Leading (chunks, tokens)."""
        return self.sync.mirror.match(chunks_of(prompt, salt)).get(0, (0, 0))


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> str:
    """Each test has its own pool in the shared server."""
    return request.node.name.partition("[")[0]


@pytest.fixture
async def router(directory: LocalServer, pool: str) -> AsyncIterator[Router]:
    async with DirectorySync(directory.url, pool=pool, mirror=Mirror(10_000), poll_seconds=0.05) as sync:
        sync.set_replicas({"chat-0": 0})
        yield Router(sync)


async def test_router_finds_blocks_of_engine(directory, pool, router, shared_engine) -> None:
    engine = shared_engine
    async with running(settings(directory, pool, engine)) as agent:
        await until(lambda: router.view.state is State.READY, partial(agent_stats, agent))
        prompt = prose(1)
        usage = await ask(engine, prompt)
        whole = len(chunks_of(prompt))
        await until(lambda: router.hit(prompt)[0] >= whole - 1, lambda: (router.hit(prompt), whole, agent_stats(agent)))
        predicted = router.hit(prompt)[1]
        actual = (await ask(engine, prompt))["prompt_tokens_details"]["cached_tokens"]
        assert abs(predicted - actual) <= 256, (predicted, actual, usage)
        assert router.hit(prose(999)) == (0, 0)
        assert router.hit(prompt, salt="tenant") == (0, 0)
        await until(lambda: router.view.chunks == agent.writer.held.count)
        folder = {"name": "tiny", "modelFolder": "builtin://tiny-chat"}
        assert router.view.engine == load_model(ModelConfig.model_validate(folder)).engine, "routers compare the two"


async def test_predicted_hits_equal_cached_tokens(directory, pool, router, make_engine) -> None:
    """Multi-turn chats, a shared system prompt, raw completions, odd text, and a cache that evicts. The router's
    prediction before each request equals the cached tokens that the engine then finds, except for the last chunk, which
    is rarely whole."""
    engine = make_engine(cacheBlocks=400)
    renderer = ChatRenderer.from_folder(ModelFolder.load(resolve("builtin://tiny-chat")), clock=datetime.now)
    rng, chats, errors, predicted_sum, actual_sum = random.Random(7), [], [], 0, 0
    async with (
        running(settings(directory, pool, engine)) as agent,
        httpx.AsyncClient(base_url=engine.url, timeout=30) as client,
    ):
        await until(lambda: agent.watch.ready)
        for number in range(40):
            path, body, rendered = next_request(rng, chats, number, renderer)
            _, predicted = router.sync.mirror.match(chain(rendered, seed("tiny"))).get(0, (0, 0))
            reply = (await client.post(path, json=body)).json()
            actual = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            errors.append(predicted - actual)
            predicted_sum, actual_sum = predicted_sum + predicted, actual_sum + actual
            last = (await asyncio.to_thread(engine.stats))["nextSequence"] - 1
            await until(
                lambda last=last: agent.stream.last == last and settled(agent, router), partial(agent_stats, agent)
            )
    assert actual_sum > 5_000
    assert abs(predicted_sum - actual_sum) < 0.15 * actual_sum, (predicted_sum, actual_sum, sorted(errors))
    assert -256 <= min(errors) <= max(errors) <= 16, sorted(errors)


def next_request(
    rng: random.Random, chats: list[list[dict[str, str]]], number: int, renderer: ChatRenderer
) -> tuple[str, dict[str, Any], bytes]:
    """A chat that continues, a new one, or a raw completion."""
    if rng.random() < 0.2:
        prompt = prose(1000 + rng.randrange(3), 150)
        return (
            "/v1/completions",
            {"model": "tiny", "prompt": prompt, "max_tokens": 2},
            renderer.render_completion(prompt),
        )
    if chats and rng.random() < 0.6:
        chat = [*rng.choice(chats[-6:]), {"role": "assistant", "content": prose(number, 20)}]
    else:
        chat = [{"role": "system", "content": prose(2000, 120)}]
    chat = [*chat, {"role": "user", "content": prose(3000 + number, 30) + " <|im_end|>\r\n\u00a0"}]
    chats.append(chat)
    body = {"model": "tiny", "messages": chat, "max_tokens": 8}
    return "/v1/chat/completions", body, renderer.render_chat(body)


def settled(agent: Agent, router: Router) -> bool:
    """The router has received all entries of the agent."""
    heard, said = router.sync._replicas["chat-0"].reader, agent.writer
    return (heard.epoch, heard.count, heard.digest) == (said.epoch, said.held.count, said.held.digest)


async def test_salts_separate_tenants(directory, pool, router, shared_engine) -> None:
    async with running(settings(directory, pool, shared_engine)) as agent:
        await until(lambda: agent.watch.ready)
        await ask(shared_engine, prose(20), cache_salt="tenant")
        await ask(shared_engine, prose(20) + "more", cache_salt="tenant")
        await until(lambda: router.hit(prose(20), "tenant")[0] > 0, partial(agent_stats, agent))
        assert router.hit(prose(20)) == (0, 0)
        assert agent.hottest(100_000).prefixes == []


async def test_evicted_blocks_leave_the_directory(directory, pool, router, make_engine) -> None:
    engine = make_engine(cacheBlocks=60)
    async with running(settings(directory, pool, engine)) as agent:
        await until(lambda: agent.watch.ready)
        for number in range(1, 5):
            await ask(engine, prose(number, 200))
            await until(lambda number=number: router.hit(prose(number, 200))[0] > 0, partial(agent_stats, agent))
        await until(lambda: router.hit(prose(1, 200)) == (0, 0), partial(agent_stats, agent))


async def test_late_agent_indexes_existing_blocks(directory, pool, router, make_engine) -> None:
    engine = make_engine(eventsKept=1)
    for number in range(4):
        await ask(engine, prose(number))
    async with running(settings(directory, pool, engine)) as agent:
        await until(lambda: all(router.hit(prose(number))[0] > 0 for number in range(4)), partial(agent_stats, agent))
        assert agent.stream.counters.snapshots == 1


async def test_restarted_engine_has_no_blocks(directory, pool, router, make_engine) -> None:
    engine = make_engine()
    async with running(settings(directory, pool, engine)) as agent:
        await until(lambda: agent.watch.ready)
        await ask(engine, prose(1))
        await until(lambda: router.hit(prose(1))[0] > 0)
        epoch = router.view.epoch
        engine.kill()
        await until(lambda: router.view.state is State.UNHEALTHY, partial(agent_stats, agent))
        await asyncio.to_thread(engine.start)
        await until(
            lambda: router.view.state is State.READY and router.hit(prose(1))[0] == 0, partial(agent_stats, agent)
        )
        await until(lambda: router.view.epoch not in ("", epoch), lambda: router.view)
        await ask(engine, prose(2))
        await until(lambda: router.hit(prose(2))[0] > 0, partial(agent_stats, agent))
        assert router.hit(prose(1)) == (0, 0)


async def test_stopped_agent_removes_its_entries(directory, pool, router, shared_engine) -> None:
    async with running(settings(directory, pool, shared_engine)) as agent:
        await until(lambda: agent.watch.ready)
        await ask(shared_engine, prose(30))
        await until(lambda: router.hit(prose(30))[0] > 0)
    async with DirectorySync(directory.url, pool=pool, mirror=Mirror(1000), poll_seconds=0.05) as fresh:
        fresh.set_replicas({"chat-0": 0})
        await until(lambda: fresh.caught_up)
        assert not fresh.view("chat-0").cache_known


async def test_drain_waits_for_requests_in_flight(directory, pool, router, make_engine) -> None:
    engine = make_engine(device={"preset": "gpu", "timeScale": 5.0})
    async with running(settings(directory, pool, engine)) as agent:
        await until(lambda: agent.watch.ready)
        request = asyncio.create_task(ask(engine, prose(1), max_tokens=25, ignore_eos=True))
        await until(lambda: agent.watch.load.running > 0, partial(agent_stats, agent))
        late = await agent.watch.drain(0.0)
        assert late["drained"] is False
        assert late["inFlight"] == 1
        done = await agent.watch.drain(60.0)
        assert done["drained"] is True
        left = await asyncio.to_thread(engine.stats)
        assert (left["running"], left["waiting"]) == (0, 0)
        await until(lambda: router.view.state is State.DRAINING)
        assert not agent.watch.ready
        assert (await request)["completion_tokens"] == 25


async def test_new_replica_warms_from_a_peer(directory, pool, make_engine, tmp_path: Path) -> None:
    warm_engine, cold_engine = make_engine(), make_engine()
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    shared = prose(1, 900)
    async with running(settings(directory, pool, warm_engine, tokenFile=str(token))) as peer:
        await until(lambda: peer.watch.ready)
        for number in range(4):
            await ask(warm_engine, shared + prose(10 + number, 60))
        await until(lambda: len(peer.hottest(100_000).prefixes) > 0, partial(agent_stats, peer))
        async with served(peer, free_port()) as url:
            changes = {"replica": "chat-1", "tokenFile": str(token), "warmup": {"peers": ["http://127.0.0.1:9", url]}}
            async with running(settings(directory, pool, cold_engine, **changes)) as late:
                await until(lambda: late.watch.ready, partial(agent_stats, late))
                assert late.watch.warmup is not None
                assert late.watch.warmup.prefixes == 1
        usage = await ask(cold_engine, shared + prose(99, 60))
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * usage["prompt_tokens"]


async def test_restarted_engine_is_warmed_again(directory, pool, router, make_engine) -> None:
    warm_engine, engine = make_engine(), make_engine()
    shared = prose(1, 900)
    async with running(settings(directory, pool, warm_engine, replica="chat-1")) as peer:
        for number in range(4):
            await ask(warm_engine, shared + prose(10 + number, 60))
        await until(lambda: len(peer.hottest(100_000).prefixes) > 0, partial(agent_stats, peer))
        async with (
            served(peer, free_port()) as url,
            running(settings(directory, pool, engine, warmup={"peers": [url]})) as agent,
        ):
            await until(lambda: agent.watch.ready, partial(agent_stats, agent))
            first = agent.watch.warmup
            await asyncio.to_thread(engine.kill)
            await until(lambda: router.view.state is State.UNHEALTHY, partial(agent_stats, agent))
            await asyncio.to_thread(engine.start)
            await until(lambda: agent.watch.ready, partial(agent_stats, agent))
            assert agent.watch.warmup is not first, "ready only once this life was warmed"
            usage = await ask(engine, shared + prose(99, 60))
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * usage["prompt_tokens"]


async def test_readiness_describes_current_engine_process(directory, pool, make_engine, monkeypatch) -> None:
    """The engine restarts between two checks: an answer must not describe the process that has ended."""
    # It checks until it is warm, which may take two checks on a busy machine. After that only requests cause checks.
    monkeypatch.setattr(StateWatch, "_interval", lambda self: 600.0 if self.warmup is not None else 0.1)
    engine = make_engine()
    async with (
        running(settings(directory, pool, engine)) as agent,
        served(agent, free_port()) as url,
        httpx.AsyncClient() as client,
    ):
        await until(lambda: agent.watch.ready, partial(agent_stats, agent))
        assert (await client.get(f"{url}/readyz")).status_code == 200
        await ask(engine, prose(1))
        await asyncio.to_thread(engine.kill)
        assert (await client.get(f"{url}/readyz")).status_code == 503
        await asyncio.to_thread(engine.start)
        assert (await client.get(f"{url}/readyz")).json()["state"] == "Warming"
        await until(lambda: agent.watch.ready, partial(agent_stats, agent))


async def test_concurrent_readiness_requests_share_one_check(directory, pool, shared_engine, monkeypatch) -> None:
    monkeypatch.setattr(StateWatch, "_interval", lambda self: 600.0 if self.warmup is not None else 0.1)
    async with running(settings(directory, pool, shared_engine)) as agent:
        await until(lambda: agent.watch.ready, partial(agent_stats, agent))
        load, looks = agent.engine.load, 0

        async def counted() -> EngineLoad:
            nonlocal looks
            looks += 1
            return await load()

        monkeypatch.setattr(agent.engine, "load", counted)
        assert await asyncio.gather(*(agent.watch.check_ready() for _ in range(50))) == [True] * 50
        assert 1 <= looks <= 3, "the first, one that began after the last had asked, and the agent's own"


async def test_warm_up_ends_at_timeout(directory, pool, make_engine, tmp_path: Path) -> None:
    warm_engine = make_engine()
    slow_engine = make_engine(device={"preset": "gpu", "timeScale": 1000.0})
    async with running(settings(directory, pool, warm_engine)) as peer:
        await until(lambda: peer.watch.ready)
        for number in range(3):
            await ask(warm_engine, prose(1, 900) + prose(10 + number, 60))
        await until(lambda: len(peer.hottest(100_000).prefixes) > 0, partial(agent_stats, peer))
        async with served(peer, free_port()) as url:
            # Time for a busy peer to answer, and none for an engine that computes a prompt in minutes.
            changes = {"replica": "chat-1", "warmup": {"peers": [url], "timeoutSeconds": 3.0}}
            async with running(settings(directory, pool, slow_engine, **changes)) as late:
                await until(lambda: late.watch.ready, partial(agent_stats, late))
                assert late.watch.warmup is not None
                assert "stopped" in late.watch.warmup.reason


class TestHttp:
    @pytest.fixture
    async def surface(self, directory, pool, shared_engine, tmp_path: Path) -> AsyncIterator[Any]:
        token = tmp_path / "token"
        token.write_text("s3cret")
        config = settings(directory, pool, shared_engine, tokenFile=str(token))
        async with (
            running(config) as agent,
            served(agent, free_port()) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            await until(lambda: agent.watch.ready)
            yield client

    async def test_only_health_needs_no_token(self, surface: httpx.AsyncClient) -> None:
        assert (await surface.get("/healthz")).status_code == 200
        assert (await surface.get("/readyz")).json() == {"state": "Ready", "why": None}
        for method, path in (("GET", "stats"), ("GET", "hottest"), ("POST", "drain")):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
                refused = await surface.request(method, f"/v1/plumage/{path}", headers=headers)
                assert refused.status_code == 401
                assert refused.json()["error"]["type"] == "authentication_error"

    async def test_stats_and_bad_requests(self, surface: httpx.AsyncClient) -> None:
        surface.headers["Authorization"] = "Bearer s3cret"
        stats = (await surface.get("/v1/plumage/stats")).json()
        assert stats["replica"] == "chat-0"
        assert stats["state"] == "Ready"
        assert "s3cret" not in str(stats)
        for query in ("-1", "x", "1e3", "9" * 30):
            assert (await surface.get(f"/v1/plumage/hottest?tokens={query}")).status_code == 400
        for body in (b"[]", b"{", b'{"timeoutSeconds": "x"}', b'{"timeoutSeconds": -1}', b'{"timeoutSeconds": true}'):
            assert (await surface.post("/v1/plumage/drain", content=body)).status_code == 400
        assert (await surface.post("/v1/plumage/drain", content=b" " * 10_000)).status_code == 413
        assert (await surface.get("/readyz")).json() == {"state": "Ready", "why": None}
        drained = await surface.post("/v1/plumage/drain", json={"timeoutSeconds": 10}, timeout=20)
        assert drained.json()["drained"] is True
        assert (await surface.get("/readyz")).status_code == 503


async def test_pool_hotness_ranks_prefixes_for_peers(directory, pool, make_engine) -> None:
    engine = make_engine()
    often, seldom = prose(50, 300), prose(51, 300)
    share = HotnessShare(directory.url, pool=pool, period=0.05, receive=False)
    async with running(settings(directory, pool, engine)) as agent:
        await until(lambda: agent.watch.ready)
        for number, beginning in enumerate((often, seldom, seldom, often, seldom)):
            await ask(engine, beginning + prose(60 + number, 60))
        hotness = agent.publisher.index.hotness
        await until(lambda: [uses for _, uses in hotness.hottest(5)] == [2, 1], lambda: hotness.hottest(5))
        (first, _), (second, _) = hotness.hottest(5)
        share.start()
        share.use(last_chunk(second) or 0, second.tokens, 7)
        await until(lambda: agent.hotness.uses() == {first: 2, second: 7}, agent.hotness.uses)
        prefixes = agent.hottest(100_000).prefixes
        assert [prefix.uses for prefix in prefixes] == [7, 2], "the pool's word counts for more than this engine's"
        assert len(prefixes[0].tokens) == second.tokens
        async with Redis.from_url(directory.url) as client:
            await client.xadd(PoolKeys(pool).hotness, {"v": SCHEMA_VERSION + 1, "d": b"?"})
        await until(lambda: agent.hotness.counts["newer_schema"] == 1, lambda: agent.hotness.counts)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(agent, Access.of(agent.config))), base_url="http://agent"
        ) as surface:
            answer = await surface.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        page = answer.text
        assert {name.partition("_agent_")[0] for name in families(page)} == {"plumage"}
        assert 'plumage_agent_directory_newer_schema_total{part="hotness"} 1' in page
        assert 'plumage_agent_directory_malformed_total{part="hotness"} 0' in page
        assert "plumage_agent_ready 1" in page
        assert f'plumage_agent_blocks_total{{kind="stored"}} {agent.publisher.index.counters.stored}' in page
    await share.close()
