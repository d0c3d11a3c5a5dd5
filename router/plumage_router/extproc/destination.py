"""Endpoints as a proxy names them: `IP:PORT`, with IPv6 addresses in brackets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from plumage_router.fleet.replicas import Fleet, Load, Replica
from plumage_router.routing.decider import Decision

__all__ = ["endpoint_of", "fallbacks", "in_subset"]


def endpoint_of(replica: Replica) -> str:
    host, port = replica.member.address()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_subset(fleet: Fleet, candidates: Sequence[Load], subset: Collection[str]) -> list[Load]:
    """The candidates whose endpoints the proxy allows."""
    allowed = frozenset(subset)
    return [load for load in candidates if endpoint_of(fleet.at(load.slot)) in allowed]


def fallbacks(fleet: Fleet, decision: Decision, most: int) -> list[str]:
    """At most so many of the next best endpoints: by the policy's scores, else those with the fewest requests."""
    if not most:
        return []
    considered, scores = decision.considered, decision.scores
    order = range(len(considered))
    if scores:
        ranked = sorted(order, key=scores.__getitem__)
    else:
        ranked = sorted(order, key=lambda index: considered[index].routed)
    slots = [considered[index].slot for index in ranked[: most + 1]]
    return [endpoint_of(fleet.at(slot)) for slot in slots if slot != decision.load.slot][:most]
