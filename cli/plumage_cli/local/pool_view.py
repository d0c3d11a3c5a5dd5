"""The view of a pool that its supervisor sends to other commands over the control socket.

Additional fields of a supervisor of another version are kept. A view with missing or different fields is refused.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from plumage_cli.errors import CliError

__all__ = ["ChildView", "DirectoryView", "PoolView", "ReplicaView", "check", "router_name"]


class ChildView(TypedDict):
    """A process. lastExit: how it ended last, None if it never did."""

    pid: int | None
    state: str
    restarts: int
    lastExit: str | None


class DirectoryView(ChildView):
    """The directory's server, where the pool runs its own. replaced: restarts because its socket was deleted."""

    replaced: int


class ReplicaView(TypedDict):
    id: str
    state: str
    url: str
    agentUrl: str
    engine: ChildView
    agent: ChildView


class PoolView(TypedDict):
    """endpoint: URL, None until the routers are started.

    started: seconds since 1970. traffic: the routers' status, empty before the first answer; its `directory` is Unknown
    while no router answers. problems: messages about missing sockets of the pool's folder, and about routers that run
    and do not answer.
    """

    pool: str
    pid: int
    endpoint: str | None
    started: float
    model: str
    policy: str
    eviction: str
    routers: list[ChildView]
    directory: DirectoryView | None
    replicas: list[ReplicaView]
    problems: list[str]
    traffic: dict[str, Any]


def router_name(number: int) -> str:
    """The name of a router's process. Most pools have one router only."""
    return f"router {number}" if number else "router"


def check(answer: object, pool: str, form: type = PoolView) -> None:
    """CliError where `answer` does not have the fields of `form`, a TypedDict."""
    try:
        msgspec.convert(answer, form)
    except msgspec.ValidationError as error:
        raise CliError(
            f"pool {pool} is run by another version of plumage ({error}); use that version, or start the pool again"
        ) from None
