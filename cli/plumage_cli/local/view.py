"""A pool as its supervisor tells it to other commands, over the control socket: the form that both sides rely on.

A supervisor of another version may tell more, and that is kept. One that tells less, or something else, is not read.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from plumage_cli.errors import CliError

__all__ = ["ChildView", "DirectoryView", "PoolView", "ReplicaView", "check"]


class ChildView(TypedDict):
    """A process. `lastExit`: how it ended last, if it ever did."""

    pid: int | None
    state: str
    restarts: int
    lastExit: str | None


class DirectoryView(TypedDict):
    """The directory's server, where it is the pool's own."""

    pid: int | None
    state: str
    restarts: int


class ReplicaView(TypedDict):
    id: str
    state: str
    url: str
    agentUrl: str
    engine: ChildView
    agent: ChildView


class PoolView(TypedDict):
    """`endpoint`: None until the router is started. `started`: seconds since 1970. `traffic`: the router's status, or
    nothing before it answered; its `directory` is Unknown where it is silent. `troubles`: what of the pool's folder is
    missing."""

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
    troubles: list[str]
    traffic: dict[str, Any]


def check(answer: object, pool: str, form: type = PoolView) -> None:
    """CliError where `answer` is not of this form, a TypedDict."""
    try:
        msgspec.convert(answer, form)
    except msgspec.ValidationError as error:
        raise CliError(
            f"pool {pool} is run by another version of plumage ({error}); use that one, or start the pool again"
        ) from None
