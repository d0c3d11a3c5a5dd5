"""Who is in the pool, from a file: `{"pool": "chat", "replicas": [{"id", "url", "agent", "state"}]}`.

The file is replaced atomically by whoever runs the engines and polled here ten times a second and more: membership
never depends on the directory. A file that can't be read or understood changes nothing, is logged once, and shows in
`error`: stale members are better than none.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from plumage.errors import ConfigurationError
from plumage.membership import parse_members
from plumage_router.replicas import Fleet

__all__ = ["Membership", "MembershipFile", "parse_members"]

log = logging.getLogger(__name__)

POLL = 0.05  # seconds


class Membership(Protocol):
    """Who tells a router its replicas. `error`: why what it told may be old. `listed`: it has told once."""

    @property
    def error(self) -> str | None: ...

    @property
    def listed(self) -> bool: ...

    def poll(self) -> None:
        """Whatever can be had without waiting."""
        ...

    async def run(self) -> None:
        """For ever."""
        ...


class MembershipFile:
    """Keeps a fleet as the file says. `error`: what is wrong with the file now, None when nothing is."""

    def __init__(self, path: Path, pool: str, fleet: Fleet) -> None:
        self._path = path
        self._pool = pool
        self._fleet = fleet
        self._seen: tuple[int, int, int] | None = None
        self.error: str | None = "it was not read yet"

    @property
    def listed(self) -> bool:
        """A file needs no waiting for: local mode writes it before a router starts."""
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
            self._complain(error.strerror or "it can't be read")
        except ConfigurationError as error:
            self._seen = seen
            self._complain(str(error))
        else:
            self._seen, self.error = seen, None

    def _complain(self, error: str) -> None:
        if error != self.error:
            log.warning("membership file %s: %s; keeping the replicas known before", self._path.name, error)
        self.error = error

    async def run(self) -> None:
        """Polls for ever."""
        while True:
            self.poll()
            await asyncio.sleep(POLL)
