"""The membership file: who is in the pool, for the router. Written whole and at once; no I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Member", "ReplicaState", "membership"]


class ReplicaState(Enum):
    """Warming: no requests yet. Ready: requests. Draining: no new ones, those in flight end."""

    WARMING = "Warming"
    READY = "Ready"
    DRAINING = "Draining"


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    url: str
    agent: str
    state: ReplicaState


def membership(pool: str, members: Iterable[Member]) -> Mapping[str, Any]:
    """The file's content."""
    replicas = [
        {"id": member.id, "url": member.url, "agent": member.agent, "state": member.state.value} for member in members
    ]
    return {"pool": pool, "replicas": replicas}
