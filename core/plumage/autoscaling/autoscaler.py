"""The autoscaler of one pool: figures in, a decision out. Pure; its clock is an argument.

Rules, the strongest first:
1. Bounds. A size outside of them becomes the nearer bound at once, whatever the metrics propose.
2. The largest proposal of all metrics wins. While a metric is missing the pool may grow by the others, never shrink.
3. minReplicas 0: requests that no replica can take wake the pool at once; without a request for idleSeconds it goes to
   zero. Otherwise one replica stays.
4. Stabilisation windows, then rate policies (`behavior`). Waking ignores both. Falling asleep ignores the window, since
   the pool was idle for idleSeconds.
5. No replica is deleted while another one warms up: a ReplicaSet would delete the warming one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from plumage.api.v1alpha1.autoscaling import AutoscalingSpec, AutoscalingStatus, MetricStatus, target_of
from plumage.autoscaling.behavior import Bounded, History, Recommendation, ReplicaChange
from plumage.autoscaling.formula import whole
from plumage.autoscaling.observation import PoolLoad
from plumage.autoscaling.proposals import Proposal, propose

__all__ = ["Autoscaler", "Decision", "Reason"]

Reason = Literal[
    "ScaledUp",
    "ScaledDown",
    "Woken",
    "FellAsleep",
    "AtTarget",
    "AtMaximum",
    "AtMinimum",
    "Asleep",
    "Stabilized",
    "RateLimited",
    "MetricMissing",
    "ReplicaWarming",
    "DryRun",
]
_LONGEST = 4096  # characters of status.autoscaling.decision
_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """Replicas, reason, and a message with the numbers.

    wanted: replicas before the decision. replicas: from now on; equal to `wanted` in a dry run and on hold.
    advised: `replicas` as it would be without a dry run. reason: the enumerated cause, for events and conditions."""

    wanted: int
    replicas: int
    advised: int
    reason: Reason
    message: str
    proposals: Sequence[Proposal] = ()

    @property
    def changes(self) -> bool:
        return self.replicas != self.wanted

    def status(self, last_scale_time: str | None) -> AutoscalingStatus:
        """The decision in the form of the pool's status."""
        return AutoscalingStatus(
            decision=self.message[:_LONGEST],
            wantedReplicas=self.advised,
            lastScaleTime=last_scale_time,
            metrics=tuple(_metric(proposal) for proposal in self.proposals),
        )


class Autoscaler:
    """State: recommendations and changes of the last hour, the last use, the ready replicas and since when."""

    def __init__(self) -> None:
        self.history = History()
        self._used: float | None = None
        self._ready: tuple[int, float] | None = None

    def decide(self, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Decision:
        """The number of replicas from now on. The caller reports a change that it made with `scaled`."""
        if not self.history.recommendations:  # a new autoscaler does not scale down before a window has passed
            self.history.recommend(Recommendation(now, load.wanted))
        if self._used is None or not load.idle(now):
            self._used = now
        load = self.completed(load, now)
        if load.wanted == 0 and spec.min_replicas == 0:
            return _dry(spec, _sleeping(spec, load, now))
        if not spec.min_replicas <= load.wanted <= spec.max_replicas:
            return _dry(spec, _gated(load, _into_bounds(spec, load)))
        proposals = tuple(propose(metric, spec, load, now) for metric in spec.metrics)
        return _dry(spec, _gated(load, self._by_metrics(spec, load, proposals, now)))

    def completed(self, load: PoolLoad, now: float) -> PoolLoad:
        """The load with `steady_for`, from earlier calls."""
        if self._ready is None or self._ready[0] != load.ready:
            self._ready = (load.ready, now)
        return replace(load, steady_for=now - self._ready[1])

    def scaled(self, before: int, after: int, now: float) -> None:
        """Counts a change of the pool from `before` to `after` replicas at `now`. Rate policies count it."""
        self.history.changed(ReplicaChange(now, after - before))

    def _by_metrics(self, spec: AutoscalingSpec, load: PoolLoad, proposals: Sequence[Proposal], now: float) -> Decision:
        wanted, numbers = load.wanted, [p.replicas for p in proposals if p.replicas is not None]
        missing = [proposal for proposal in proposals if proposal.missing]
        raw = max(numbers, default=wanted)
        if missing and raw <= wanted:
            self.history.recommend(Recommendation(now, wanted, held=True))
            return Decision(wanted, wanted, wanted, "MetricMissing", _hold(wanted, missing), proposals)
        asleep = not missing and spec.min_replicas == 0 and self._idle_for(now) >= spec.idle_seconds
        recommended = 0 if asleep else min(max(raw, spec.min_replicas, 1), spec.max_replicas)
        steady = Bounded(recommended) if asleep else self.history.stabilized(wanted, recommended, spec.behavior, now)
        self.history.recommend(Recommendation(now, recommended))
        final = self.history.within_rate(wanted, steady.replicas, spec.behavior, now)
        cause = f"no request for {spec.idle_seconds} s" if asleep else _cause(proposals, raw)
        bound: Reason | None = "AtMaximum" if raw > recommended else "AtMinimum" if raw < recommended else None
        return _explained(wanted, final, steady, bound, cause, proposals)

    def _idle_for(self, now: float) -> float:
        return now - self._used if self._used is not None else 0.0


def _explained(wanted: int, final: Bounded, steady: Bounded, bound: Reason | None, cause: str,
               proposals: Sequence[Proposal]) -> Decision:  # fmt: skip
    limit = final if final.limit else steady
    reason: Reason = "AtTarget"
    if final.replicas != wanted:
        reason = "ScaledUp" if final.replicas > wanted else "FellAsleep" if not final.replicas else "ScaledDown"
    elif limit.limit:
        reason = limit.limit
    elif bound:
        reason = bound
    parts = [_step(wanted, final.replicas), cause]
    if bound == "AtMaximum":
        parts.append("maxReplicas bounds it")
    elif bound == "AtMinimum":
        parts.append("no fewer while the pool is in use, or by minReplicas")
    parts += [found.message for found in (steady, final) if found.message]
    return Decision(wanted, final.replicas, final.replicas, reason, _sentence(parts), proposals)


def _sleeping(spec: AutoscalingSpec, load: PoolLoad, now: float) -> Decision:
    """At zero replicas only waiting requests count."""
    if not load.fresh(now):
        return Decision(0, 0, 0, "MetricMissing", "0 replicas: no router reported whether requests wait.")
    waiting = load.waiting
    if not waiting:
        return Decision(0, 0, 0, "Asleep", "0 replicas: no request waits.")
    targets = [target_of(metric) for metric in spec.metrics if metric.type == "RequestsInFlight"]
    up = min(spec.max_replicas, max([1, *(whole(waiting / target) for target in targets)]))
    return Decision(0, up, up, "Woken", f"{_step(0, up)}: {waiting:g} requests wait.")


def _into_bounds(spec: AutoscalingSpec, load: PoolLoad) -> Decision:
    above = load.wanted > spec.max_replicas
    bound = spec.max_replicas if above else spec.min_replicas
    reason: Reason = "ScaledDown" if above else "ScaledUp"
    cause = f"{'max' if above else 'min'}Replicas is {bound}"
    return Decision(load.wanted, bound, bound, reason, _sentence([_step(load.wanted, bound), cause]))


def _gated(load: PoolLoad, decision: Decision) -> Decision:
    """No scale-down while a replica warms up."""
    if decision.replicas >= load.wanted or not load.warming:
        return decision
    names = ", ".join(load.warming[:3]) + (", …" if len(load.warming) > 3 else "")
    message = f"{load.wanted} replicas: {names} must be warm before a replica is deleted. {decision.message}"
    return Decision(load.wanted, load.wanted, load.wanted, "ReplicaWarming", message, decision.proposals)


def _dry(spec: AutoscalingSpec, decision: Decision) -> Decision:
    if not spec.dry_run or not decision.changes:
        return decision
    message = f"Dry run, nothing is changed: {decision.message}"
    return Decision(decision.wanted, decision.wanted, decision.advised, "DryRun", message, decision.proposals)


def _cause(proposals: Sequence[Proposal], raw: int) -> str:
    """The deciding metric's message. The status has those of the others."""
    deciding = next((proposal for proposal in proposals if proposal.replicas == raw), None)
    if deciding is None:
        return "; ".join(f"{proposal.metric}: {proposal.message}" for proposal in proposals)
    return f"{deciding.metric} {deciding.message}, wants {raw}"


def _hold(wanted: int, missing: Sequence[Proposal]) -> str:
    reasons = "; ".join(f"{proposal.metric} {proposal.message}" for proposal in missing)
    return f"{wanted} replicas, held: {reasons}."


def _step(before: int, after: int) -> str:
    return f"{before} → {after} replicas" if before != after else f"{before} replicas"


def _sentence(parts: Sequence[str]) -> str:
    first, *others = parts
    return f"{first}: {'; '.join(others)}." if others else f"{first}."


def _metric(proposal: Proposal) -> MetricStatus:
    return MetricStatus(
        type=proposal.metric,
        current=None if proposal.value is None else ceil(proposal.value),
        target=proposal.target,
        proposedReplicas=proposal.replicas,
        message=proposal.message[:_LONGEST_MESSAGE],
    )
