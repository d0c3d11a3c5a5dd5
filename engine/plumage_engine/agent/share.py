"""An agent's share of its pool's directory: it follows the membership file, so that a pool that grows stays within the
server's memory and nobody has to tell the agents that run.
"""

from __future__ import annotations

import asyncio
import json

from plumage.directory.ledger import capacity_within
from plumage.directory.writer import DirectoryWriter
from plumage_engine.agent.config import ShareConfig

__all__ = ["follow_share", "share_of"]

LOOK = 1.0  # seconds between two looks at the file; a replica takes longer to start


def share_of(config: ShareConfig) -> int | None:
    """Chunks that each agent may hold now; None while the file can't be read."""
    try:
        members = len(json.loads(config.members_file.read_bytes())["replicas"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return capacity_within(config.memory, max(config.replicas, members))


async def follow_share(config: ShareConfig, writer: DirectoryWriter) -> None:
    """Until cancelled."""
    known: int | None = None
    while True:
        share = share_of(config)
        if share is not None and share != known:
            known = share
            await writer.resize(share)
        await asyncio.sleep(LOOK)
