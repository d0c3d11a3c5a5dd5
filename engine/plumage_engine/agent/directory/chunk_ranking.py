"""Ranks the engine's chunks by hotness, for a directory that has no room for all of them."""

from __future__ import annotations

import asyncio
import time

from plumage.directory.publisher.writer import DirectoryWriter
from plumage_engine.agent.directory.pool_hotness import PoolHotness

__all__ = ["rank_chunks"]

INTERVAL = 5.0  # seconds between two rankings; the pool's hotness arrives as often
SHARE = 50  # smallest ratio of the interval between rankings to the time that one takes


async def rank_chunks(writer: DirectoryWriter, hotness: PoolHotness) -> None:
    """Until cancelled. A ranking of all cached chunks may take a second, so it takes 1/SHARE of the time at most."""
    pause = INTERVAL
    while True:
        await asyncio.sleep(pause)
        began = time.monotonic()
        if writer.held.full:
            await writer.rank(await hotness.chunk_uses(writer.held.count))
        pause = max(INTERVAL, SHARE * (time.monotonic() - began))
