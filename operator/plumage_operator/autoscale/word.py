"""The autoscaler's word on a pool, as a plan reads it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plumage.autoscaling import CacheHeat, Decision, coldest_first, deletion_costs
from plumage_operator.autoscale.pods import PoolPods
from plumage_operator.observed import Scaling

__all__ = ["costs_of", "decided", "manual"]


def decided(
    decision: Decision, *, hit_ratio: float | None, last_scale_time: str | None, costs: dict[str, int]
) -> Scaling:
    """A decision as condition, status fields and deletion costs."""
    status = decision.status(last_scale_time).model_dump(mode="json", by_alias=True, exclude_none=True)
    fields: dict[str, Any] = {"autoscaling": status, **_ratio(hit_ratio)}
    active = "False" if decision.reason == "MetricMissing" else "True"
    return Scaling(decision.replicas, active, decision.reason, decision.message, costs, fields)


def manual(replicas: int, *, hit_ratio: float | None, costs: dict[str, int]) -> Scaling:
    """A pool without autoscaling: somebody else says how many, the coldest still goes first."""
    message = "spec.autoscaling is not set: spec.replicas counts"
    return Scaling(replicas, "False", "Manual", message, costs, _ratio(hit_ratio))


def _ratio(hit_ratio: float | None) -> dict[str, Any]:
    return {} if hit_ratio is None else {"hitRatioPercent": round(100 * hit_ratio)}


def costs_of(pods: PoolPods, fleet: Sequence[CacheHeat], leaving: int, warming: Sequence[str]) -> dict[str, int]:
    """Deletion costs to write now. An old one is made 0, which is the same as none."""
    annotated = {pod.name: pod.cost for pod in pods.engines if pod.cost is not None}
    costs = deletion_costs(coldest_first(fleet), leaving, annotated, warming=warming)
    return {pod: int(cost or 0) for pod, cost in costs.items() if cost is not None or annotated.get(pod) != "0"}
