"""Whether the directory's server answers, and whether it is the one that answered before."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import NoPermissionError

from plumage.directory.client.connection import Client, error_text
from plumage.directory.schema import BEAT_TTL

__all__ = ["ServerState"]

log = logging.getLogger(__name__)


class ServerState:
    """What a router knows of the server.

    degraded: the last read failed. grace_until: until then a missing heartbeat has no effect, because the agents need
    time to write it again. counts: gets `failures`. shown: the server's URL, for the log."""

    def __init__(self, client: Client, shown: str, counts: Counter[str]) -> None:
        self.degraded = True
        self.grace_until = 0.0
        self.shown = shown
        self._client = client
        self._counts = counts
        self._replication: object = None  # the server's replication id, once seen

    def failed(self, error: BaseException) -> None:
        """Notes that a read failed."""
        self._counts["failures"] += 1
        if not self.degraded or self._counts["failures"] == 1:
            log.warning("directory %s can't be read, going on with what is known: %s", self.shown, error_text(error))
        self.degraded = True

    def answered(self) -> None:
        """Notes that the server answers. After a failure it may have lost its data."""
        if self.degraded:
            self.grace_until = time.monotonic() + BEAT_TTL
            log.info("directory %s answers", self.shown)
        self.degraded = False

    async def was_replaced(self) -> bool:
        """Whether another server answers than before, by the replication id. It may lack writes."""
        found = await self._replication_id()
        replaced = found is not None and self._replication is not None and found != self._replication
        if replaced:
            self.grace_until = time.monotonic() + BEAT_TTL
        self._replication = found or self._replication
        return replaced

    async def _replication_id(self) -> object:
        client = self._client
        try:
            if isinstance(client, RedisCluster):
                nodes: Any = await client.info("replication", target_nodes=RedisCluster.PRIMARIES)
                return tuple(sorted(str(node.get("master_replid")) for node in nodes.values()))
            return (await client.info("replication")).get("master_replid")
        except NoPermissionError:  # an ACL user without INFO: digests and gaps show losses later
            return None
