"""Which replicas are deleted when a pool shrinks: those with the coldest cache.

A ReplicaSet first deletes replicas that are not ready, then those with the smallest
`controller.kubernetes.io/pod-deletion-cost` (0 without the annotation). So only the replicas to delete get a cost,
below zero. The others get 0 where they still have an older cost, because 0 equals none. Costs are written only when the
pool shrinks: Kubernetes recommends that, since each one is a write to the API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["DELETION_COST", "CacheHotness", "coldest_first", "deletion_costs"]

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class CacheHotness:
    """A replica. id: its pod's name. in_flight: its requests.

    hotness: of its whole cache, in one unit for all replicas; None if its agent did not report it.
    """

    id: str
    ready: bool = True
    hotness: float | None = None
    in_flight: float = 0.0


def coldest_first(replicas: Iterable[CacheHotness]) -> list[str]:
    """The order of deletion. Replicas with an unknown cache come first, since routers do not know their caches either.
    Equally cold replicas are ordered by requests in flight, then by name."""
    return [one.id for one in sorted(replicas, key=_worth)]


def _worth(one: CacheHotness) -> tuple[bool, bool, float, float, str]:
    return one.ready, one.hotness is not None, one.hotness or 0.0, one.in_flight, one.id


def deletion_costs(
    order: Sequence[str], leaving: int, annotated: Mapping[str, str], *, warming: Iterable[str] = ()
) -> dict[str, int]:
    """Costs to write, by pod. Pods with the right cost are left out; one without the annotation has the cost 0.

    order: all replicas, coldest first. leaving: how many will be deleted. annotated: current values, by pod.
    Empty while a replica warms up: a ReplicaSet would delete it before any other.
    """
    if any(warming) or leaving <= 0:
        return {}
    going = order[: min(leaving, len(order))]
    costs = dict.fromkeys(order, 0) | {pod: place - len(going) for place, pod in enumerate(going)}
    return {pod: cost for pod, cost in costs.items() if annotated.get(pod, "0") != str(cost)}
