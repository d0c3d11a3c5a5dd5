"""What the soak sends to fill the pool's hotness arrives in an agent's view, and stays below the size at which it is
thinned out."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage_bench.benches.soak.pool_hotness import fill_hotness

FULL = 65_536


async def test_the_pools_hotness_is_filled(server: LocalServer, until: Any) -> None:
    agent = HotnessShare(server.url, pool="soak", period=0.05, send=False)
    agent.start()
    try:
        await asyncio.to_thread(fill_hotness, server.socket, "soak", random.Random(1))
        await until(lambda: len(agent.view) > 0.8 * FULL)
        assert await agent.store_view()
        assert len(agent.view.to_bytes()) > 24 * 0.8 * FULL
        assert agent.stream.counts["malformed"] == 0
        assert await agent.stream.client.xlen("plumage:v1:{soak}:hotness") <= 1
    finally:
        await agent.close()
    assert len(agent.view) < FULL
