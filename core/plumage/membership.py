"""The replicas of a pool, in the form that routers read: `{"pool": "chat", "replicas": [{"id", "url",
"agent", "state"}]}`. It never depends on the directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plumage.errors import ConfigurationError

__all__ = ["Member", "MemberState", "MembershipContent", "pack_members", "parse_members"]


class MemberState(StrEnum):
    """A replica's state, as reported by the one that runs it. Warming: no requests yet. Draining: no new ones, those in
    flight end. Cordoned: as Draining, but it stays.
    """

    READY = "Ready"
    WARMING = "Warming"
    DRAINING = "Draining"
    CORDONED = "Cordoned"


@dataclass(frozen=True, slots=True)
class Member:
    """One line of the membership. `url` is the engine's: http or https, host and port."""

    id: str
    url: str
    agent: str | None = None
    state: MemberState = MemberState.READY

    @property
    def secure(self) -> bool:
        """Whether the engine serves TLS."""
        return self.url.startswith("https:")

    def address(self) -> tuple[str, int]:
        """Host and port. ConfigurationError if the URL says more, since nothing else of it would be used."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port or (443 if self.secure else 80)
        except ValueError:
            host = None
        if host is None or parts.scheme not in ("http", "https"):
            raise ConfigurationError(
                f"replica {self.id}: url must be http://HOST:PORT or https://HOST:PORT, got {self.url!r}"
            )
        more = (("user info", "@" in parts.netloc), ("a path", parts.path.strip("/")),
                ("a query", parts.query), ("a fragment", parts.fragment))  # fmt: skip
        if found := " and ".join(name for name, there in more if there):
            raise ConfigurationError(f"replica {self.id}: url must be {parts.scheme}://HOST:PORT alone; it has {found}")
        return host, port


class MemberLine(BaseModel):
    """A `Member` in the file."""

    model_config = ConfigDict(extra="ignore")  # a newer writer may say more
    id: Annotated[str, Field(min_length=1, max_length=253)]
    url: str
    agent: str | None = None
    state: MemberState = MemberState.READY


class MembershipContent(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="ignore")
    pool: str
    replicas: list[MemberLine] = Field(max_length=10_000)


def parse_members(data: bytes, pool: str) -> list[Member]:
    """The members in a file's bytes; ConfigurationError says what is wrong with them."""
    try:
        file = MembershipContent.model_validate_json(data)
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


def pack_members(pool: str, members: Iterable[Member]) -> dict[str, Any]:
    """The file's content."""
    lines = [MemberLine(id=one.id, url=one.url, agent=one.agent, state=one.state) for one in members]
    return MembershipContent(pool=pool, replicas=lines).model_dump(mode="json")
