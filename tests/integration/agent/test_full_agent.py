"""An agent whose share of the directory is smaller than its engine's cache: what is used again is what routers know."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from plumage.directory.mirror import Mirror
from plumage.directory.server import LocalServer
from plumage.directory.sync import DirectorySync
from plumage.hashing.chunks import chain, seed
from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage_engine.agent import agent as agents
from plumage_engine.agent.config import AgentConfig
from plumage_engine.agent.tokenizer import read_tokenizer

pytestmark = pytest.mark.redis

BOS = ModelFolder.load(resolve("builtin://tiny-chat")).around[0]
ROOM = 40  # chunks


def prose(number: int, words: int = 500) -> str:
    rng = random.Random(number)
    return "".join(rng.choice(("the ", "cache ", "holds ", "a ", "prefix, ")) for _ in range(words))


def settings(directory: LocalServer, engine: Any) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "pool": "full",
            "replica": "chat-0",
            "model": "tiny",
            "modelFolder": "builtin://tiny-chat",
            "engineUrl": engine.url,
            "eventsEndpoint": engine.events,
            "replayEndpoint": engine.replay,
            "directoryUrl": directory.url,
            "listen": {"port": 0},
            "heartbeatSeconds": 0.2,
            "loadSeconds": 0.05,
            "maxChunks": ROOM,
        }
    )


async def ask(engine: Any, *prompts: str) -> None:
    for prompt in prompts:
        await asyncio.to_thread(engine.ask, prompt)


async def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"did not happen within 30 s: {what()}")


async def test_a_prefix_used_again_stays_and_prompts_used_once_go(
    directory: LocalServer, make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "RANK", 0.05)
    engine, shared = make_engine(device={"timeScale": 0.05}), prose(1, words=600)
    chunks = chain((BOS + shared).encode(), seed("tiny"))
    once = [prose(number) for number in range(100, 130)]
    agent = agents.Agent(settings(directory, engine), read_tokenizer("builtin://tiny-chat"), random.Random(1))
    async with DirectorySync(directory.url, pool="full", mirror=Mirror(10_000), poll_seconds=0.05) as router:
        router.set_replicas({"chat-0": 0})

        def known() -> int:
            return router.mirror.match(chunks).get(0, (0, 0))[0]

        agent.start()
        try:
            await until(lambda: agent.ready, agent.stats)
            await ask(engine, *once[:12])
            await until(lambda: agent.writer.full, agent.stats)
            await ask(engine, *(f"{shared}{tail} {prose(tail, words=80)}" for tail in range(3)))
            assert 8 < len(chunks) < ROOM
            await until(lambda: known() >= len(chunks) - 1, lambda: (known(), len(chunks), agent.stats()))
            await ask(engine, *once[12:])
            await until(lambda: agent.holdings.index.chunks > 6 * ROOM, agent.stats)
            await until(lambda: router.view("chat-0").chunks == agent.writer.count == ROOM, agent.stats)
            assert known() >= len(chunks) - 1
            assert agent.stats()["chunksLeftOut"] > 5 * ROOM
        finally:
            await agent.close()
