"""What each metric of a pool asks for. Units of values and targets are the manifest's: percent, milliseconds, or an
amount for one replica.

A proposal is a number of replicas or none. Without a number the metric is *missing* or has *no opinion*. A missing one
is not measured or stale, so the pool must not shrink. A hit ratio has no opinion while no prompt is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from plumage.api.v1alpha1.autoscaling import AutoscalingSpec, MetricSpec, MetricType, target_of
from plumage.autoscaling.formula import Tolerance, of_pool, per_replica
from plumage.autoscaling.judge import FEWEST_ACCESSES, HARMLESS, CacheJudge
from plumage.autoscaling.observation import PoolLoad, ReplicaLoad

__all__ = ["STEADY_SECONDS", "Proposal", "judge_of", "propose"]

STEADY_SECONDS: Final = 120.0
"""Seconds without a change of the ready replicas after which the hit ratio counts: one minute to fill new caches, and
one minute of measurement. Before that the ratio partly comes from fewer replicas, and would add replicas twice."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """message: for the status, with the numbers."""

    metric: MetricType
    target: int
    value: float | None
    replicas: int | None
    message: str
    missing: bool = False


def propose(metric: MetricSpec, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Proposal:
    """The proposal of one metric. The pool wants one replica or more."""
    if metric.type == "CacheHitRatio":
        return _hit_ratio(metric, spec, load, now)
    if metric.type in _OF_POOL:
        return _latency(metric, spec, load, now)
    return _amount(metric, spec, load, now)


def _tolerance(spec: AutoscalingSpec) -> Tolerance:
    up, down = spec.behavior.scale_up, spec.behavior.scale_down
    return Tolerance(up.tolerance_percent / 100, down.tolerance_percent / 100)


# A figure of each replica.


def _wanting(replica: ReplicaLoad) -> float | None:
    return None if replica.in_flight is None else max(0.0, replica.in_flight - replica.held_back)


_OF_REPLICA: Final[Mapping[MetricType, Callable[[ReplicaLoad], float | None]]] = {
    "TotalTokensPerSecond": lambda replica: replica.total_tokens_per_second,
    "OutputTokensPerSecond": lambda replica: replica.output_tokens_per_second,
    "RequestsInFlight": _wanting,
    "KvCacheUsage": lambda replica: None if replica.kv_usage is None else 100 * replica.kv_usage,
}  # fmt: skip


def _amount(metric: MetricSpec, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Proposal:
    target, read = target_of(metric), _OF_REPLICA[metric.type]
    ready = [replica for replica in load.replicas if replica.ready]
    reported = [read(replica) for replica in ready if replica.fresh(now)]
    values = [value for value in reported if value is not None]
    if not values:
        return _missing(metric, f"none of {len(ready)} ready replicas reported it")
    if metric.type == "RequestsInFlight" and load.fresh(now):
        values = [value + load.queued / len(values) for value in values]  # they wait for any replica
    unknown = len(ready) - len(values)
    replicas = per_replica(
        values,
        target,
        wanted=load.wanted,
        unknown=unknown,
        unready=max(len(load.replicas), load.wanted) - len(ready),
        tolerance=_tolerance(spec),
    )
    value = sum(values) / len(values)
    message = f"{_shown(metric, value)} a replica, target {_shown(metric, target)}"
    if unknown:
        message += f", {unknown} of {len(ready)} unknown"
    if metric.type == "RequestsInFlight" and (held := sum(replica.held_back for replica in ready)):
        message += f", {held:g} held back on purpose not counted"
    return Proposal(metric.type, target, value, replicas, message)


# A latency of the pool.

_OF_POOL: Final[Mapping[MetricType, Callable[[PoolLoad], float | None]]] = {
    "TimeToFirstToken": lambda load: load.ttft,
    "QueueWait": lambda load: load.queue_wait,
}


def _latency(metric: MetricSpec, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Proposal:
    target, seconds = target_of(metric), _OF_POOL[metric.type](load)
    if seconds is None and load.idle(now):
        seconds = 0.0  # no request waits
    if seconds is None or not load.fresh(now):
        return _missing(metric, "no router reported it")
    if not load.ready:
        return _missing(metric, "no replica is ready")
    value = 1000 * max(0.0, seconds - load.held_back)
    replicas = of_pool(value, target, wanted=load.wanted, ready=load.ready, tolerance=_tolerance(spec))
    message = f"{_shown(metric, value)}, target {_shown(metric, target)}"
    if load.held_back:
        message += f", {1000 * load.held_back:.0f} ms held back on purpose not counted"
    return Proposal(metric.type, target, value, replicas, message)


# The hit ratio, by the miss-ratio curve.


def judge_of(load: PoolLoad) -> CacheJudge | None:
    """None where curve, caches or hit ratio are not known."""
    if load.hit_ratio is None or not load.ready or not load.cache or load.curve is None:
        return None
    if load.curve.accesses < FEWEST_ACCESSES:
        return None
    return CacheJudge(load.curve, load.hit_ratio, load.ready, load.cache)


def _hit_ratio(metric: MetricSpec, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Proposal:
    target = target_of(metric)
    if load.idle(now):
        return Proposal(metric.type, target, None, None, "no opinion: no prompt was answered")
    if not load.fresh(now) or load.hit_ratio is None:
        return _missing(metric, "no router reported it")
    judge = judge_of(load)
    if judge is None:
        return _missing(metric, "the miss-ratio curve is not known yet", 100 * load.hit_ratio)
    if load.steady_for < STEADY_SECONDS:
        message = f"{load.hit_ratio:.1%}, held: {load.ready} replicas are ready since {load.steady_for:.0f} s"
        return Proposal(metric.type, target, 100 * load.hit_ratio, load.wanted, message)
    replicas, verdict = _judged(judge, target / 100, _tolerance(spec), load.wanted, spec.max_replicas)
    message = f"{load.hit_ratio:.1%}, target {target} %: {verdict}"
    return Proposal(metric.type, target, 100 * load.hit_ratio, replicas, message)


def _judged(judge: CacheJudge, target: float, tolerance: Tolerance, wanted: int, most: int) -> tuple[int, str]:
    expected, largest = judge.predict(wanted), max(most, wanted)
    if expected >= target:
        # Remove a replica only with some margin: predictions are inexact, and the pool would add the replica again.
        floor = target + min(target * tolerance.down, (1 - target) / 2)
        verdict = f"the curve predicts {expected:.1%} with {wanted}"
    elif expected >= target * (1 - tolerance.up):
        return wanted, "near enough"
    elif (enough := judge.fewest(target, largest)) is not None:
        return enough, f"the curve predicts {judge.predict(enough):.1%} with {enough}"
    else:  # more replicas gain nothing; keep those that reach the highest possible ratio
        best = judge.predict(largest)
        floor, verdict = best - HARMLESS, f"the curve predicts no more than {best:.1%} with {largest}: none is added"
    spared = judge.fewest(floor, wanted)
    if spared is None or spared >= wanted:
        return wanted, verdict
    return spared, f"{verdict}, {judge.predict(spared):.1%} with {spared}"


def _missing(metric: MetricSpec, reason: str, value: float | None = None) -> Proposal:
    return Proposal(metric.type, target_of(metric), value, None, f"missing: {reason}", missing=True)


def _shown(metric: MetricSpec, value: float) -> str:
    if metric.type in _OF_POOL:
        return f"{value:,.0f} ms"
    return f"{value:,.1f} %" if metric.type == "KvCacheUsage" else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
