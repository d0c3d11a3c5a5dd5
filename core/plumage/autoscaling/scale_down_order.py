"""Which replicas go when a pool shrinks: those whose cache the fleet misses least.

A ReplicaSet deletes replicas that are not ready first, whatever anybody says, and of the others the one with the
smallest `controller.kubernetes.io/pod-deletion-cost`; 0 where the annotation is absent. So only those that are to go
get a cost, below zero, and an annotation left from another time is taken away. Costs are written when the pool shrinks
and at no other time: Kubernetes asks that of whoever uses them, since each is a write to the API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["DELETION_COST", "CacheHeat", "coldest_first", "deletion_costs"]

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class CacheHeat:
    """A replica, by its pod's name. heat: the hotness of all that it holds, in any unit that is the same for all; None
    where its agent did not tell. in_flight: requests under way."""

    id: str
    ready: bool = True
    heat: float | None = None
    in_flight: float = 0.0


def coldest_first(replicas: Iterable[CacheHeat]) -> list[str]:
    """The order in which they should go. One whose cache is not known goes before those that are: routers do not know
    it either, and send it little of what it holds. Equally cold: the one with least to drain, then by name."""
    return [one.id for one in sorted(replicas, key=_worth)]


def _worth(one: CacheHeat) -> tuple[bool, bool, float, float, str]:
    return one.ready, one.heat is not None, one.heat or 0.0, one.in_flight, one.id


def deletion_costs(
    order: Sequence[str], leaving: int, annotated: Mapping[str, str], *, warming: Iterable[str] = ()
) -> dict[str, str | None]:
    """The annotation values to write, None to remove; none for a pod that has the right one already.

    order: all replicas, coldest first. leaving: how many go. annotated: the values there are, by pod. Empty while a
    replica warms: it would be deleted before any other, so nothing may go, and no cost be written.
    """
    if any(warming) or leaving <= 0:
        return {}
    going = order[: min(leaving, len(order))]
    costs: dict[str, str | None] = {pod: str(place - len(going)) for place, pod in enumerate(going)}
    costs.update(dict.fromkeys(order[len(going) :]))
    return {pod: cost for pod, cost in costs.items() if annotated.get(pod) != cost}
