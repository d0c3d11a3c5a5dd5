"""Who is in the pool, from a file: `{"pool": "chat", "replicas": [{"id", "url", "agent", "state"}]}`.

The file is replaced atomically by whoever runs the engines and polled here ten times a second and more: membership
never depends on the directory. A file that can't be read or understood changes nothing, is logged once, and shows in
`error`: stale members are better than none.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plumage.errors import ConfigurationError
from plumage_router.replicas import Fleet, Member, MemberState

__all__ = ["MembershipFile", "parse_members"]

log = logging.getLogger(__name__)

POLL = 0.05  # seconds


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")  # a newer writer may say more
    id: Annotated[str, Field(min_length=1, max_length=253)]
    url: str
    agent: str | None = None
    state: MemberState = MemberState.READY


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")
    pool: str
    replicas: list[_Line] = Field(max_length=10_000)


def parse_members(data: bytes, pool: str) -> list[Member]:
    """The members in a file's bytes; ConfigurationError says what is wrong with them."""
    try:
        file = _File.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}") from error
    if file.pool != pool:
        raise ConfigurationError(f"it is for pool {file.pool!r}, this router serves {pool!r}")
    members = [Member(line.id, line.url, line.agent, line.state) for line in file.replicas]
    if len({member.id for member in members}) != len(members):
        raise ConfigurationError("two replicas have the same id")
    for member in members:
        member.address()
    return members


class MembershipFile:
    """Keeps a fleet as the file says. `error`: what is wrong with the file now, None when nothing is."""

    def __init__(self, path: Path, pool: str, fleet: Fleet) -> None:
        self._path = path
        self._pool = pool
        self._fleet = fleet
        self._seen: tuple[int, int, int] | None = None
        self.error: str | None = "it was not read yet"

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
