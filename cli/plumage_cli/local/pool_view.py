"""The view of a pool that its supervisor sends to other commands over the control socket.

Additional fields of a supervisor of another version are kept. A view with missing or different fields is refused.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from plumage_cli.errors import CliError

__all__ = ["ChildView", "DirectoryView", "PoolView", "ReplicaView", "check"]


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
    """endpoint: URL, None until the router is started.

    started: seconds since 1970. traffic: the router's status, empty before its first answer; its `directory` is Unknown
    while the router does not answer. problems: messages about missing sockets of the pool's folder.
    """

    pool: str
    pid: int
    endpoint: str | None
    started: float
    model: str
    policy: str
    eviction: str
    router: ChildView | None
    directory: DirectoryView | None
    replicas: list[ReplicaView]
    problems: list[str]
    traffic: dict[str, Any]


def check(answer: object, pool: str, form: type = PoolView) -> None:
    """CliError where `answer` does not have the fields of `form`, a TypedDict."""
    try:
        msgspec.convert(answer, form)
    except msgspec.ValidationError as error:
        raise CliError(
            f"pool {pool} is run by another version of plumage ({error}); use that version, or start the pool again"
        ) from None
