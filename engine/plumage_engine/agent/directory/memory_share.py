"""The agent's share of its pool's directory memory, and which chunks are published where the share is full.

The share follows the number of replicas in the membership file, or behind the Service. So a growing pool stays within
the server's memory without a restart of its agents. In a full share hotter chunks replace colder ones.
"""

from __future__ import annotations

import asyncio
import time

from plumage.directory.publisher.held_chunks import capacity_within
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.settings.agent_config import ShareConfig
from plumage_engine.agent.directory.pool_hotness import PoolHotness
from plumage_engine.agent.pool_members import count_in, count_of

__all__ = ["follow_share", "rank_chunks", "share_of"]

FILE_INTERVAL = 1.0  # seconds between two reads of the file; a replica takes longer to start
DNS_INTERVAL = 15.0  # seconds between two DNS queries; a cluster's DNS caches answers for as long
RANKING_INTERVAL = 5.0  # seconds between two rankings; the pool's hotness arrives as often
RANKING_SHARE = 50  # smallest ratio of the interval between rankings to the time that one takes


def share_of(config: ShareConfig) -> int | None:
    """Chunks that each agent may hold now; None where the file can't be read or the name can't be resolved. A name may
    block for seconds."""
    if config.members_file is not None:
        members = count_in(config.members_file)
    else:
        members = count_of(config.members_service or "")
    return None if members is None else capacity_within(config.memory, max(config.replicas, members))


async def follow_share(config: ShareConfig, writer: DirectoryWriter) -> None:
    """Until cancelled."""
    known: int | None = None
    while True:
        share = share_of(config) if config.members_file is not None else await asyncio.to_thread(share_of, config)
        if share is not None and share != known:
            known = share
            await writer.resize(share)
        await asyncio.sleep(FILE_INTERVAL if config.members_file is not None else DNS_INTERVAL)


async def rank_chunks(writer: DirectoryWriter, hotness: PoolHotness) -> None:
    """Until cancelled. A ranking of all cached chunks may take a second, so it takes 1/RANKING_SHARE of the time at
    most."""
    pause = RANKING_INTERVAL
    while True:
        await asyncio.sleep(pause)
        began = time.monotonic()
        if writer.held.full:
            await writer.rank(await hotness.chunk_uses(writer.held.count))
        pause = max(RANKING_INTERVAL, RANKING_SHARE * (time.monotonic() - began))
