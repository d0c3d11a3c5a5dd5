"""The autoscaler of one pool: keeps its reports, decides at each round, and answers with the decision in between.

It has no clock and no I/O of its own. The rules are those of `plumage.autoscaling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from plumage.api.v1alpha1 import InferencePool
from plumage.autoscaling import (
    STEADY_SECONDS,
    Autoscaler,
    CacheHotness,
    CacheJudge,
    Decision,
    PoolLoad,
    coldest_first,
    deletion_costs,
    judge_of,
)
from plumage.fleet_report import RouterReport
from plumage_operator.autoscaling.adapters import adapter_fields, some_are_missing
from plumage_operator.autoscaling.pods import PoolPods, pods_observed
from plumage_operator.autoscaling.pool_load import PodReports, ReportWindow, cache_hotness, pool_load
from plumage_operator.observed import Observed, ScalingDecision, meta
from plumage_operator.resources.context import deployed_replicas, read_pool, scaled_by_hand
from plumage_operator.resources.model_files import adapter_files
from plumage_operator.status.conditions import timestamp

__all__ = ["PoolScaler", "autoscaled_decision", "deletion_costs_of", "engines_seen", "manual_decision"]

_STEADY: Final = frozenset({"AtTarget", "Stabilized", "RateLimited", "AtMinimum", "AtMaximum"})
"""Reasons between which a healthy pool alternates.

The first stands for all, so that a pool's status is not written at each change.
"""


class PoolScaler:
    """The reports, recommendations and last decision of a pool.

    uid: the pool's. load: of the last round. judge: of the last hit ratio that was measured on a settled number of
    replicas.
    """

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.reports = PodReports()
        self.load: PoolLoad | None = None
        self.judge: CacheJudge | None = None
        self._rules = Autoscaler()
        self._decision: Decision | None = None
        self._wanted: int | None = None
        self._hit_ratio: float | None = None
        self._scaled: float | None = None
        self._read: tuple[object, InferencePool] | None = None
        self.last_notable: object = None  # the part of the last decision that caused a reconcile

    def pool(self, observed: Observed) -> InferencePool:
        """The parsed manifest, cached by generation. Raises ManifestError as `read_pool` does."""
        version = (meta(observed.pool).get("uid"), meta(observed.pool).get("generation"))
        if self._read is None or self._read[0] != version:
            self._read = (version, read_pool(observed.pool))
        return self._read[1]

    def pods(self, observed: Observed) -> PoolPods:
        """The pods to poll. Drops reports of others."""
        pods = pods_observed(observed)
        self.reports.retain(pods)
        return pods

    def decide(self, observed: Observed, pods: PoolPods, now: float) -> None:
        """Decides after a poll. Without a Deployment there is nothing to scale yet. now: seconds since 1970."""
        pool = self.pool(observed)
        wanted = _wanted(observed, pool)
        if wanted is None:
            return
        if self._wanted is not None and wanted != self._wanted:
            self._rules.scaled(self._wanted, wanted, now)
            self._scaled = now
        self._wanted = wanted
        first = self.load is None
        self.load = self._rules.completed(pool_load(pods, self.reports, wanted), now)
        if self.load.steady_for >= STEADY_SECONDS and self.load.fresh(now):
            self.judge = judge_of(self.load) or self.judge
        if self.load.hit_ratio is not None and self.load.fresh(now):
            self._hit_ratio = self.load.hit_ratio
        spec = pool.spec.autoscaling
        decision = None if spec is None else self._rules.decide(spec, self.load, now)
        if first and decision is not None and decision.reason == "MetricMissing":
            decision = None  # a rate needs two polls
        self._decision = decision

    def decision(self, observed: Observed) -> ScalingDecision | None:
        """The decision for a plan; None before the first one: then the status keeps its decision."""
        pool = self.pool(observed)
        wanted = _wanted(observed, pool)
        if self.load is None or wanted is None:
            return None
        if pool.spec.engine.external is not None:
            more = engines_seen(self.reports.routers.values())
            return manual_decision(0, scaled_by_hand(pool), hit_ratio=self._hit_ratio, costs={}, more=more)
        autoscaled = pool.spec.autoscaling is not None
        decision = self._decision if autoscaled else None  # the last one may be of an earlier spec
        if autoscaled and decision is None:
            return None
        replicas = pool.spec.initial_replicas if decision is None else decision.replicas
        pods = pods_observed(observed)
        adapters = self.adapters(pool, pods)
        costs = deletion_costs_of(pods, cache_hotness(pods, self.reports.agents), wanted - replicas, self.load.warming)
        if decision is None:
            why = scaled_by_hand(pool)
            return manual_decision(replicas, why, hit_ratio=self._hit_ratio, costs=costs, more=adapters)
        if decision.reason in _STEADY:
            decision = replace(decision, reason="AtTarget")
        return autoscaled_decision(
            decision, hit_ratio=self._hit_ratio, last_scale_time=self._time(observed), costs=costs, more=adapters
        )

    def adapters(self, pool: InferencePool, pods: PoolPods) -> dict[str, Any]:
        """The status field `adapters`, by the last reports."""
        sources = {name: place.path for name, place in adapter_files(pool).items()}
        return adapter_fields(sources, pods.engines, self.reports.agents)

    def lacks_adapters(self, observed: Observed, pods: PoolPods) -> bool:
        """Whether a ready replica lacks an adapter, so that the pool's status will change soon."""
        pool = self.pool(observed)
        fields = self.adapters(pool, pods)
        return bool(pool.spec.model.adapters) and (not fields or some_are_missing(fields))

    def _time(self, observed: Observed) -> str | None:
        if self._scaled is not None:
            return timestamp(self._scaled)
        found = ((observed.pool.get("status") or {}).get("autoscaling") or {}).get("lastScaleTime")
        return None if found is None else str(found)


def autoscaled_decision(
    decision: Decision,
    *,
    hit_ratio: float | None,
    last_scale_time: str | None,
    costs: dict[str, int],
    more: Mapping[str, Any] | None = None,
) -> ScalingDecision:
    """A decision as condition, status fields and deletion costs. more: further status fields."""
    status = decision.status(last_scale_time).model_dump(mode="json", by_alias=True, exclude_none=True)
    fields: dict[str, Any] = {"autoscaling": status, **_ratio(hit_ratio), **(more or {})}
    active = "False" if decision.reason == "MetricMissing" else "True"
    return ScalingDecision(decision.replicas, active, decision.reason, decision.message, costs, fields)


def manual_decision(
    replicas: int,
    message: str,
    *,
    hit_ratio: float | None,
    costs: dict[str, int],
    more: Mapping[str, Any] | None = None,
) -> ScalingDecision:
    """Returns the decision for a pool without autoscaling. The coldest replica is still deleted first. message:
    who they are.
    """
    return ScalingDecision(replicas, "False", "Manual", message, costs, {**_ratio(hit_ratio), **(more or {})})


def engines_seen(routers: Iterable[ReportWindow[RouterReport]]) -> dict[str, int]:
    """Fields of the status: external engines, and those that can get requests, as the last report of a router has them.

    Routers see the same EndpointSlices, so the one that sees most is right. Empty without a report.
    """
    lasts = [window.last for window in routers]
    seen = [last.replicas for last in lasts if last is not None and last.listed]
    if not seen:
        return {}
    ready = max(sum(one.state == "Ready" for one in replicas) for replicas in seen)
    return {"replicas": max(map(len, seen)), "readyReplicas": ready}


def _wanted(observed: Observed, pool: InferencePool) -> int | None:
    """The replicas that the pool's Deployment asks for; none of external engines."""
    return 0 if pool.spec.engine.external is not None else deployed_replicas(observed, pool)


def _ratio(hit_ratio: float | None) -> dict[str, Any]:
    return {} if hit_ratio is None else {"hitRatioPercent": round(100 * hit_ratio)}


def deletion_costs_of(
    pods: PoolPods, fleet: Sequence[CacheHotness], leaving: int, warming: Sequence[str]
) -> dict[str, int]:
    """Deletion costs to write now."""
    annotated = {pod.name: pod.cost for pod in pods.engines if pod.cost is not None}
    return deletion_costs(coldest_first(fleet), leaving, annotated, warming=warming)
