"""The metrics of a pool that other scalers can use, by name. Pure.

A HorizontalPodAutoscaler adds replicas when a metric is above its target. A target is for the pool (`Value`) or for one
replica (`AverageValue`, which divides the pool's sum). So the hit ratio itself is no use: a higher one would add
replicas.
Instead there is the miss ratio that more cache would avoid, by the miss-ratio curve and for twice the present cache. A
HorizontalPodAutoscaler doubles at most. It is zero where more cache does not help.

A missing or stale value is absent, and then a HorizontalPodAutoscaler keeps the size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from plumage.autoscaling import CacheJudge, PoolLoad, ReplicaLoad
from plumage_operator.autoscaling import PoolScaler
from plumage_operator.cache.store import PoolKey

__all__ = ["METRICS", "Metric", "OnRequest", "PoolSample", "current_values", "ignore_request", "pool_samples"]

OnRequest: TypeAlias = Callable[[PoolKey], None]
"""Called with each pool whose metrics somebody requested, so that they stay fresh."""

LEAST_BENEFIT: Final = 0.01
"""A smaller benefit, as a share of prompt tokens, counts as none: it is about the error of a sampled curve (bench
`mrc`).
"""


@dataclass(frozen=True, slots=True)
class PoolSample:
    """A pool at its last poll.

    judge: of the last hit ratio that was measured on a settled number of replicas. It predicts the hit ratio of the
    present number until that has settled.
    """

    namespace: str
    pool: str
    load: PoolLoad
    judge: CacheJudge | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """read: the value, None where it is missing. key: its name in the JSON document."""

    name: str
    key: str
    help: str
    read: Callable[[PoolSample], float | None]


def ignore_request(_: PoolKey) -> None:
    """Ignores a request, for metrics that are always fresh."""


def pool_samples(scalers: Mapping[PoolKey, PoolScaler]) -> list[PoolSample]:
    """All pools that were polled."""
    return [PoolSample(*key, scaler.load, scaler.judge) for key, scaler in scalers.items() if scaler.load is not None]


def current_values(sample: PoolSample, now: float) -> Mapping[str, float]:
    """All fresh values of a pool, by the metric's name."""
    found = {metric.name: metric.read(_fresh(sample, now)) for metric in METRICS.values()}
    return {name: value for name, value in found.items() if value is not None}


def _fresh(sample: PoolSample, now: float) -> PoolSample:
    """Without stale values."""
    load = sample.load
    replicas = tuple(one if one.fresh(now) else ReplicaLoad(id=one.id, ready=one.ready) for one in load.replicas)
    if load.fresh(now):
        return replace(sample, load=replace(load, replicas=replicas))
    return replace(sample, load=PoolLoad(wanted=load.wanted, replicas=replicas), judge=None)


def _curable(sample: PoolSample) -> float | None:
    ready = sample.load.ready
    if sample.judge is None or not ready:
        return None
    benefit = sample.judge.predict(2 * ready) - sample.judge.predict(ready)
    return benefit if benefit >= LEAST_BENEFIT else 0.0


def _sum(read: Callable[[ReplicaLoad], float | None]) -> Callable[[PoolSample], float | None]:
    """Over the ready replicas; None unless each reported, because a partial sum would look like idleness."""

    def summed(sample: PoolSample) -> float | None:
        values = [read(one) for one in sample.load.replicas if one.ready]
        known = [value for value in values if value is not None]
        return sum(known) if values and len(known) == len(values) else None

    return summed


def _waiting(read: Callable[[PoolLoad], float | None]) -> Callable[[PoolSample], float | None]:
    """A latency in seconds, without the time that requests are held back on purpose; 0 without requests."""

    def seconds(sample: PoolSample) -> float | None:
        load = sample.load
        value = read(load)
        if value is None:
            return 0.0 if load.arrivals == 0 and load.in_flight == 0 else None
        return max(0.0, value - load.held_back)

    return seconds


def _kv_usage(sample: PoolSample) -> float | None:
    total = _sum(lambda one: one.kv_usage)(sample)
    return None if total is None else total / sample.load.ready


def _in_flight(one: ReplicaLoad) -> float | None:
    return None if one.in_flight is None else max(0.0, one.in_flight - one.held_back)


def _requests(sample: PoolSample) -> float | None:
    """Returns the requests in the engines, and those that wait in routers until an engine has room."""
    in_engines = _sum(_in_flight)(sample)
    return None if in_engines is None else in_engines + sample.load.queued


_ALL: Final = (
    Metric(
        "plumage_cache_miss_ratio_curable",
        "cacheMissRatioCurable",
        "Share of prompt tokens that miss and would hit with twice the cache; 0 where more cache does not help.",
        _curable,
    ),
    Metric(
        "plumage_total_tokens_per_second",
        "totalTokensPerSecond",
        "Prompt tokens (cached ones included) and output tokens a second, of the pool: for AverageValue.",
        _sum(lambda one: one.total_tokens_per_second),
    ),
    Metric(
        "plumage_output_tokens_per_second",
        "outputTokensPerSecond",
        "Output tokens a second, of the pool: for AverageValue.",
        _sum(lambda one: one.output_tokens_per_second),
    ),
    Metric(
        "plumage_requests_in_flight",
        "requestsInFlight",
        "Requests running and waiting, less those held back on purpose, of the pool: for AverageValue.",
        _requests,
    ),
    Metric(
        "plumage_time_to_first_token_seconds",
        "timeToFirstTokenSeconds",
        "95th percentile of the last minute.",
        _waiting(lambda load: load.ttft),
    ),
    Metric(
        "plumage_queue_wait_seconds",
        "queueWaitSeconds",
        "95th percentile of the last minute.",
        _waiting(lambda load: load.queue_wait),
    ),
    Metric("plumage_kv_cache_usage_ratio", "kvCacheUsageRatio", "KV blocks in use, 0 to 1, on average.", _kv_usage),
    Metric(
        "plumage_held_requests",
        "heldRequests",
        "Requests that found no replica in the last minute: above 0, a pool at zero must scale up.",
        lambda sample: sample.load.waiting,
    ),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _ALL}
