"""An engine whose cache is reset sends AllBlocksCleared. Routers forget its entries and learn those of later
requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from support.agents import BOS, ask, running, settings, until

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.server.local_server import LocalServer
from plumage.hashing.chunks import chain, seed
from plumage_engine.agent.http.stats import agent_stats

pytestmark = pytest.mark.redis

PROMPT = "the cache holds a prefix of many words, " * 60


async def test_reset_cache_is_cleared_and_indexed_again(
    directory: LocalServer, make_engine: Callable[..., Any]
) -> None:
    engine = make_engine(devMode=True, device={"timeScale": 0.05})
    chunks = chain((BOS + PROMPT).encode(), seed("tiny"))
    async with (
        DirectorySync(directory.url, pool="cleared", mirror=Mirror(10_000), poll_seconds=0.05) as router,
        running(settings(directory, "cleared", engine)) as agent,
    ):
        router.set_replicas({"chat-0": 0})

        def known() -> int:
            return router.mirror.match(chunks).get(0, (0, 0))[0]

        async def learned() -> None:
            await ask(engine, PROMPT)
            await until(lambda: known() >= len(chunks) - 1, partial(agent_stats, agent))

        await until(lambda: agent.watch.ready, partial(agent_stats, agent))
        await learned()
        epoch = agent.writer.epoch
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{engine.url}/reset_prefix_cache")).status_code == 200
        await until(lambda: known() == 0 and agent.writer.held.count == 0, partial(agent_stats, agent))
        assert len(agent.publisher.index) == 0
        await learned()
        assert agent.writer.epoch == epoch, "one cleared cache is no new life of the engine"
        assert agent.publisher.index.counters.stray_removals == 0
