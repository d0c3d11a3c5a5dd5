"""Short forms of queries and replicas for tests of routing policies."""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing import Query, ReplicaState, RoutingPolicy

__all__ = ["loads", "prompt", "send"]


def send(policy: RoutingPolicy, query: Query, replicas: Sequence[ReplicaState]) -> int:
    """Route one request that does not end. Returns its slot."""
    choice = policy.choose(query, replicas)
    policy.routed(query, choice)
    return choice.slot


def prompt(*chunks: int, hits: dict[int, float] | None = None, text: bytes = b"") -> Query:
    """A prompt of 100 tokens per chunk, at time 0. hits: cached tokens by slot."""
    return Query(0.0, 100.0 * len(chunks), hits or {}, chunks, text)


def loads(*requests: int) -> list[ReplicaState]:
    """Replicas in the slots from 0 on. Each has this many routed requests."""
    return [ReplicaState(slot, routed=load) for slot, load in enumerate(requests)]
