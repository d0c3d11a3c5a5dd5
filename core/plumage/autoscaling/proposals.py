"""What each metric of a pool asks for. Units of values and targets are the manifest's: percent, milliseconds, or an
amount for one replica.

A proposal is a number of replicas, or none: then the metric either is *missing* (not measured, or stale: nobody may
shrink the pool without it) or has *no opinion* (a hit ratio while no prompt is answered).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from plumage.api.v1alpha1.autoscaling import AutoscalingSpec, MetricSpec, MetricType, target_of
from plumage.autoscaling.formula import Tolerance, of_pool, per_replica
from plumage.autoscaling.judge import FEWEST_ACCESSES, HARMLESS, CacheJudge
from plumage.autoscaling.observation import PoolLoad, ReplicaLoad

__all__ = ["SETTLE", "Proposal", "judge_of", "propose"]

SETTLE: Final = 120.0
"""Seconds after which a hit ratio is that of the replicas there are: the minute it is measured over, and one in which
new caches fill. Judged earlier, the ratio of few replicas would be taken for that of many, and buy twice."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """why: the words for status; they have the numbers."""

    metric: MetricType
    target: int
    value: float | None
    replicas: int | None
    why: str
    missing: bool = False


def propose(metric: MetricSpec, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Proposal:
    """One metric's; the pool has replicas, or at least wants some."""
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
    told = [read(replica) for replica in ready if replica.fresh(now)]
    values = [value for value in told if value is not None]
    if not values:
        return _missing(metric, f"none of {len(ready)} ready replicas told it")
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
    why = f"{_shown(metric, value)} a replica, target {_shown(metric, target)}"
    if unknown:
        why += f", {unknown} of {len(ready)} unknown"
    if metric.type == "RequestsInFlight" and (held := sum(replica.held_back for replica in ready)):
        why += f", {held:g} held back on purpose not counted"
    return Proposal(metric.type, target, value, replicas, why)


# A latency of the pool.

_OF_POOL: Final[Mapping[MetricType, Callable[[PoolLoad], float | None]]] = {
    "TimeToFirstToken": lambda load: load.ttft,
    "QueueWait": lambda load: load.queue_wait,
}


def _latency(metric: MetricSpec, spec: AutoscalingSpec, load: PoolLoad, now: float) -> Proposal:
    target, seconds = target_of(metric), _OF_POOL[metric.type](load)
    if seconds is None and load.idle(now):
        seconds = 0.0  # nobody waits
    if seconds is None or not load.fresh(now):
        return _missing(metric, "no router told it")
    if not load.ready:
        return _missing(metric, "no replica is ready")
    value = 1000 * max(0.0, seconds - load.held_back)
    replicas = of_pool(value, target, wanted=load.wanted, ready=load.ready, tolerance=_tolerance(spec))
    why = f"{_shown(metric, value)}, target {_shown(metric, target)}"
    if load.held_back:
        why += f", {1000 * load.held_back:.0f} ms held back on purpose not counted"
    return Proposal(metric.type, target, value, replicas, why)


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
        return _missing(metric, "no router told it")
    judge = judge_of(load)
    if judge is None:
        return _missing(metric, "the miss-ratio curve is not known yet", 100 * load.hit_ratio)
    if load.steady_for < SETTLE:
        why = f"{load.hit_ratio:.1%}, held: {load.ready} replicas are ready since {load.steady_for:.0f} s"
        return Proposal(metric.type, target, 100 * load.hit_ratio, load.wanted, why)
    replicas, verdict = _judged(judge, target / 100, _tolerance(spec), load.wanted, spec.max_replicas)
    why = f"{load.hit_ratio:.1%}, target {target} %: {verdict}"
    return Proposal(metric.type, target, 100 * load.hit_ratio, replicas, why)


def _judged(judge: CacheJudge, target: float, tolerance: Tolerance, wanted: int, most: int) -> tuple[int, str]:
    expected, largest = judge.predict(wanted), max(most, wanted)
    if expected >= target:
        # Given back only with some room: a prediction is not met to the point, and the replica would be bought again.
        floor = target + min(target * tolerance.down, (1 - target) / 2)
        verdict = f"the curve predicts {expected:.1%} with {wanted}"
    elif expected >= target * (1 - tolerance.up):
        return wanted, "near enough"
    elif (enough := judge.fewest(target, largest)) is not None:
        return enough, f"the curve predicts {judge.predict(enough):.1%} with {enough}"
    else:  # nothing to gain by more; no fewer than have the most hits that there can be
        best = judge.predict(largest)
        floor, verdict = best - HARMLESS, f"the curve predicts no more than {best:.1%} with {largest}: not bought"
    spared = judge.fewest(floor, wanted)
    if spared is None or spared >= wanted:
        return wanted, verdict
    return spared, f"{verdict}, {judge.predict(spared):.1%} with {spared}"


def _missing(metric: MetricSpec, why: str, value: float | None = None) -> Proposal:
    return Proposal(metric.type, target_of(metric), value, None, f"missing: {why}", missing=True)


def _shown(metric: MetricSpec, value: float) -> str:
    if metric.type in _OF_POOL:
        return f"{value:,.0f} ms"
    return f"{value:,.1f} %" if metric.type == "KvCacheUsage" else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
