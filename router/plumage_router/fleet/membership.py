"""The replicas of a pool: from the API server in a cluster (`endpoint_slices`), else from a file.

The file is `{"pool": "chat", "replicas": [{"id", "url", "agent", "state"}]}`. The process that runs the engines
replaces it atomically; it is polled here. Membership never depends on the directory. A file that cannot be read changes
nothing; `error` says why, and so does the log, once: stale members are better than none.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Protocol

from plumage.errors import ConfigurationError
from plumage.membership import parse_members
from plumage.settings.router_config import PoolConfig
from plumage_router.fleet.replicas import Fleet

__all__ = ["Membership", "MembershipFile", "find_members"]

log = logging.getLogger(__name__)

_POLL_INTERVAL = 0.05  # seconds


class Membership(Protocol):
    """The source of a router's replicas. `error`: why they may be stale. `listed`: the source answered once."""

    @property
    def error(self) -> str | None: ...

    @property
    def listed(self) -> bool: ...

    def poll(self) -> None:
        """Reads what is available without waiting."""
        ...

    async def run(self) -> None:
        """Follows the source forever."""
        ...


def find_members(config: PoolConfig, fleet: Fleet, rng: random.Random) -> Membership:
    """The source of the pool's replicas. The API server's client is imported only if the configuration needs it:
    `kube` is optional."""
    if config.membership is None:
        assert config.membership_file is not None, "a router's configuration has exactly one of the two"
        return MembershipFile(config.membership_file, config.pool, fleet)
    from plumage.incluster.api import ApiServer
    from plumage_router.fleet.endpoint_slices import SliceMembership

    return SliceMembership(config.membership.endpoint_slices, ApiServer(config.api_server), fleet, rng)


class MembershipFile:
    """Updates a fleet from the file. `error`: why the file cannot be used; None while it can."""

    def __init__(self, path: Path, pool: str, fleet: Fleet) -> None:
        self._path = path
        self._pool = pool
        self._fleet = fleet
        self._seen: tuple[int, int, int] | None = None
        self.error: str | None = "the file was not read yet"

    @property
    def listed(self) -> bool:
        """Local mode writes the file before it starts a router."""
        return True

    def poll(self) -> None:
        """Reads the file if it changed."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            self._fleet.update(parse_members(self._path.read_bytes(), self._pool))
        except OSError as error:
            self._report(error.strerror or "it cannot be read")
        except ConfigurationError as error:
            self._seen = seen
            self._report(str(error))
        else:
            self._seen, self.error = seen, None

    def _report(self, error: str) -> None:
        if error != self.error:
            log.warning("membership file %s: %s; keeping the known replicas", self._path.name, error)
        self.error = error

    async def run(self) -> None:
        """Polls forever."""
        while True:
            self.poll()
            await asyncio.sleep(_POLL_INTERVAL)
