"""One pool's autoscaler: takes what was read, decides at each look, and has a word for every plan in between.

Thin: reports and clock come from outside, the rules are `plumage.autoscaling`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plumage.api.v1alpha1 import InferencePool
from plumage.autoscaling import SETTLE, Autoscaler, CacheJudge, Decision, PoolLoad, judge_of
from plumage.cluster import child_name
from plumage_operator.autoscale.figures import Reports, heats, pool_load
from plumage_operator.autoscale.pods import PoolPods, pods_observed
from plumage_operator.autoscale.word import costs_of, decided, manual
from plumage_operator.conditions import timestamp
from plumage_operator.observed import Observed, Scaling, meta, own_child
from plumage_operator.plan import read_pool

__all__ = ["PoolScaler"]

_STEADY: Final = frozenset({"AtTarget", "Stabilized", "RateLimited", "AtMinimum", "AtMaximum"})
"""Reasons between which a pool goes to and fro while nothing is wrong: the first of them stands for all, so that a
pool's status is not written for each."""


class PoolScaler:
    """Keeps reports, wishes and the last decision of a pool. uid: the pool's. load: as of the last look. judge: of the
    last hit ratio that was measured on a settled number of replicas."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.reports = Reports()
        self.load: PoolLoad | None = None
        self.judge: CacheJudge | None = None
        self._rules = Autoscaler()
        self._decision: Decision | None = None
        self._wanted: int | None = None
        self._hit_ratio: float | None = None
        self._scaled: float | None = None
        self._read: tuple[object, InferencePool] | None = None
        self.told: object = None  # what of the last word was worth a plan

    def pool(self, observed: Observed) -> InferencePool:
        """The manifest, parsed once a generation. ManifestError as `read_pool`."""
        version = (meta(observed.pool).get("uid"), meta(observed.pool).get("generation"))
        if self._read is None or self._read[0] != version:
            self._read = (version, read_pool(observed.pool))
        return self._read[1]

    def pods(self, observed: Observed) -> PoolPods:
        """Whom to ask; reports of others are dropped."""
        pods = pods_observed(observed)
        self.reports.keep(pods)
        return pods

    def decide(self, observed: Observed, pods: PoolPods, now: float) -> None:
        """After the pods were asked. Without a Deployment there is nothing to scale yet. now: seconds since 1970."""
        pool = self.pool(observed)
        wanted = replicas_wanted(pool, observed)
        if wanted is None:
            return
        if self._wanted is not None and wanted != self._wanted:
            self._rules.scaled(self._wanted, wanted, now)
            self._scaled = now
        self._wanted = wanted
        first = self.load is None
        self.load = self._rules.completed(pool_load(pods, self.reports, wanted), now)
        if self.load.steady_for >= SETTLE and self.load.fresh(now):
            self.judge = judge_of(self.load) or self.judge
        if self.load.hit_ratio is not None and self.load.fresh(now):
            self._hit_ratio = self.load.hit_ratio
        spec = pool.spec.autoscaling
        decision = None if spec is None else self._rules.decide(spec, self.load, now)
        if first and decision is not None and decision.reason == "MetricMissing":
            decision = None  # a rate is of two looks
        self._decision = decision

    def word(self, observed: Observed) -> Scaling | None:
        """For the plan that is made now; None before there is one, when what the status says holds."""
        pool = self.pool(observed)
        wanted = replicas_wanted(pool, observed)
        if self.load is None or wanted is None:
            return None
        autoscaled = pool.spec.autoscaling is not None
        decision = self._decision if autoscaled else None  # the last one may be of a spec that was another
        if autoscaled and decision is None:
            return None
        replicas = pool.spec.initial_replicas if decision is None else decision.replicas
        pods = pods_observed(observed)
        costs = costs_of(pods, heats(pods, self.reports.agents), wanted - replicas, self.load.warming)
        if decision is None:
            return manual(replicas, hit_ratio=self._hit_ratio, costs=costs)
        if decision.reason in _STEADY:
            decision = replace(decision, reason="AtTarget")
        return decided(decision, hit_ratio=self._hit_ratio, last_scale_time=self._time(observed), costs=costs)

    def _time(self, observed: Observed) -> str | None:
        if self._scaled is not None:
            return timestamp(self._scaled)
        found = ((observed.pool.get("status") or {}).get("autoscaling") or {}).get("lastScaleTime")
        return None if found is None else str(found)


def replicas_wanted(pool: InferencePool, observed: Observed) -> int | None:
    """What the engines' Deployment asks for; None where the pool has none yet."""
    deployment = own_child(observed, ("Deployment", child_name(pool.metadata.name, "engine")))
    if deployment is None:
        return None
    return int((deployment.get("spec") or {}).get("replicas", 1))
