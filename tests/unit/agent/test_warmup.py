"""Which prefixes of its peers a new replica computes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from plumage.settings.agent_config import WarmupConfig
from plumage_engine.agent.engine.client import EngineClient
from plumage_engine.agent.lifecycle.warmup import Prefix, hottest_of, warm


def prefix(first: int, length: int, uses: int, adapter: str = "") -> Prefix:
    return Prefix(list(range(first, first + length)), adapter, uses)


class Peer:
    """An agent that lists these prefixes, and an engine that records the prompts that it received."""

    def __init__(self, prefixes: Sequence[Prefix], silent: bool = False) -> None:
        self.prefixes, self.silent, self.computed = prefixes, silent, list[list[int]]()

    async def hottest(self, _: web.Request) -> web.Response:
        if self.silent:
            await asyncio.sleep(60)
        return web.json_response({"prefixes": [{"tokens": one.tokens, "uses": one.uses} for one in self.prefixes]})

    async def complete(self, request: web.Request) -> web.Response:
        self.computed.append((await request.json())["prompt"])
        return web.json_response({"choices": []})


@pytest.fixture
async def serve() -> AsyncIterator[object]:
    servers: list[TestServer] = []

    async def start(peer: Peer) -> str:
        app = web.Application()
        app.router.add_get("/v1/plumage/hottest", peer.hottest)
        app.router.add_post("/v1/completions", peer.complete)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=0)
        servers.append(server)
        return str(server.make_url("/"))

    yield start
    for server in servers:
        await server.close()


async def _warmed(serve, peers: Sequence[Peer], budget: int, seconds: float = 30.0) -> tuple[list[list[int]], str]:
    own = Peer(())
    engine = EngineClient((await serve(own)).rstrip("/"), None, None)
    try:
        config = WarmupConfig(max_tokens=budget, timeout_seconds=seconds, concurrency=1)
        warmth = await warm(engine, "tiny", [await serve(peer) for peer in peers], config, None, random.Random(0))
    finally:
        await engine.close()
    return own.computed, warmth.reason


async def test_prefixes_of_each_peer_are_warmed_hottest_first(serve) -> None:
    one, other = prefix(0, 64, uses=2), prefix(1000, 64, uses=3)
    computed, reason = await _warmed(serve, [Peer([one]), Peer([other])], budget=1000)
    assert (computed, reason) == ([other.tokens, one.tokens], "done")


async def test_budget_covers_all_peers_together(serve) -> None:
    peers = [Peer([prefix(1000 * number, 64, uses=number)]) for number in range(4)]
    computed, _ = await _warmed(serve, peers, budget=130)
    assert [tokens[0] for tokens in computed] == [3000, 2000]


async def test_silent_peer_costs_at_most_half_of_the_time(serve) -> None:
    one = prefix(0, 64, uses=2)
    computed, reason = await _warmed(serve, [Peer((), silent=True), Peer([one])], budget=1000, seconds=6.0)
    assert (computed, reason) == ([one.tokens], "done")


def test_shared_part_of_prefixes_counts_once() -> None:
    hot, longer, stranger = prefix(0, 64, uses=5), prefix(0, 96, uses=4), prefix(500, 64, uses=3)
    assert hottest_of([stranger, longer, hot], 64 + 32 + 64) == [hot, longer, stranger]
    assert hottest_of([stranger, longer, hot], 64 + 32 + 63) == [hot, longer]


def test_prefix_contained_in_another_is_left_out() -> None:
    longer, begun = prefix(0, 96, uses=5), prefix(0, 64, uses=4)
    assert hottest_of([begun, longer, longer], 1000) == [longer]
    adapted = prefix(0, 64, uses=4, adapter="lora")
    assert hottest_of([longer, adapted], 1000) == [longer, adapted], "another adapter has other blocks"


def test_prefix_that_does_not_fit_makes_room_for_one_that_does() -> None:
    large, small = prefix(0, 640, uses=5), prefix(1000, 64, uses=4)
    assert hottest_of([large, small, prefix(2000, 15, uses=9)], 100) == [small], "a part of a chunk is no block"
