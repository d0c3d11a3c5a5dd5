"""An agent whose share of the directory is smaller than its engine's cache: what is used again is what routers know."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.agents import BOS, ask, running, settings, until

from plumage.directory.mirror import Mirror
from plumage.directory.server import LocalServer
from plumage.directory.sync import DirectorySync
from plumage.hashing.chunks import chain, seed
from plumage_engine.agent import agent as agents

pytestmark = pytest.mark.redis

ROOM = 40  # chunks


def prose(number: int, words: int = 500) -> str:
    rng = random.Random(number)
    return "".join(rng.choice(("the ", "cache ", "holds ", "a ", "prefix, ")) for _ in range(words))


async def test_a_prefix_used_again_stays_and_prompts_used_once_go(
    directory: LocalServer, make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "RANK", 0.05)
    engine, shared = make_engine(device={"timeScale": 0.05}), prose(1, words=600)
    chunks = chain((BOS + shared).encode(), seed("tiny"))
    once = [prose(number) for number in range(100, 130)]
    async with (
        DirectorySync(directory.url, pool="full", mirror=Mirror(10_000), poll_seconds=0.05) as router,
        running(settings(directory, "full", engine, maxChunks=ROOM)) as agent,
    ):
        router.set_replicas({"chat-0": 0})

        def known() -> int:
            return router.mirror.match(chunks).get(0, (0, 0))[0]

        await until(lambda: agent.ready, agent.stats)
        for prompt in once[:12]:
            await ask(engine, prompt)
        await until(lambda: agent.writer.full, agent.stats)
        for tail in range(3):
            await ask(engine, f"{shared}{tail} {prose(tail, words=80)}")
        assert 8 < len(chunks) < ROOM
        await until(lambda: known() >= len(chunks) - 1, lambda: (known(), len(chunks), agent.stats()))
        for prompt in once[12:]:
            await ask(engine, prompt)
        await until(lambda: agent.holdings.index.chunks > 6 * ROOM, agent.stats)
        await until(lambda: router.view("chat-0").chunks == agent.writer.count == ROOM, agent.stats)
        assert known() >= len(chunks) - 1
        assert agent.stats()["chunksLeftOut"] > 5 * ROOM
