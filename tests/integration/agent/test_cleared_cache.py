"""An engine whose cache is reset says AllBlocksCleared: routers forget what it held and learn what it computes then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from plumage.directory.mirror import Mirror
from plumage.directory.server import LocalServer
from plumage.directory.sync import DirectorySync
from plumage.hashing.chunks import chain, seed
from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.config import AgentConfig
from plumage_engine.agent.tokenizer import read_tokenizer

pytestmark = pytest.mark.redis

BOS = ModelFolder.load(resolve("builtin://tiny-chat")).around[0]
PROMPT = "the cache holds a prefix of many words, " * 60


async def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"did not happen within 30 s: {what()}")


async def test_a_reset_cache_is_forgotten_and_learned_anew(
    directory: LocalServer, make_engine: Callable[..., Any]
) -> None:
    engine = make_engine(devMode=True, device={"timeScale": 0.05})
    config = AgentConfig.model_validate(
        {
            "pool": "cleared", "replica": "chat-0", "model": "tiny", "modelFolder": "builtin://tiny-chat",
            "engineUrl": engine.url, "eventsEndpoint": engine.events, "replayEndpoint": engine.replay,
            "directoryUrl": directory.url, "listen": {"port": 0}, "heartbeatSeconds": 0.2, "loadSeconds": 0.05,
        }
    )  # fmt: skip
    chunks = chain((BOS + PROMPT).encode(), seed("tiny"))
    agent = Agent(config, read_tokenizer("builtin://tiny-chat"), random.Random(1))
    async with DirectorySync(directory.url, pool="cleared", mirror=Mirror(10_000), poll_seconds=0.05) as router:
        router.set_replicas({"chat-0": 0})

        def known() -> int:
            return router.mirror.match(chunks).get(0, (0, 0))[0]

        async def learned() -> None:
            await asyncio.to_thread(engine.ask, PROMPT)
            await until(lambda: known() >= len(chunks) - 1, agent.stats)

        agent.start()
        try:
            await until(lambda: agent.ready, agent.stats)
            await learned()
            epoch = agent.writer.epoch
            async with httpx.AsyncClient() as client:
                assert (await client.post(f"{engine.url}/reset_prefix_cache")).status_code == 200
            await until(lambda: known() == 0 and agent.writer.count == 0, agent.stats)
            assert len(agent.holdings.index) == 0
            await learned()
            assert agent.writer.epoch == epoch, "one cleared cache is no new life of the engine"
            assert agent.holdings.index.counters.stray_removals == 0
        finally:
            await agent.close()
