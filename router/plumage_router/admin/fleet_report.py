"""Makes this router's report for the operator (`plumage.fleet_report`)."""

from __future__ import annotations

from plumage.fleet_report import HistogramReport, ReplicaReport, RouterReport
from plumage_router.clock import monotonic, wall
from plumage_router.fleet.replicas import Replica
from plumage_router.metrics import BufferedHistogram
from plumage_router.pool_router import PoolRouter

__all__ = ["fleet_report"]


def fleet_report(pool: PoolRouter) -> RouterReport:
    """The report as of now."""
    now, metrics, queue = monotonic(), pool.metrics, pool.wait_queue
    return RouterReport(
        pool=pool.config.pool,
        router=pool.name,
        at=wall(),
        started=pool.started,
        serving=pool.serving and not pool.leaving,
        listed=pool.membership.listed,
        membership_error=pool.membership.error,
        config_error=pool.config_error,
        directory="Degraded" if pool.directory.degraded else "Fresh",
        in_flight=len(pool.in_flight),
        requests=metrics.requests,
        waiting=len(queue) + (0 if pool.fleet.candidates(now) else len(pool.flow_control)),
        wanting=queue.unserved(now),
        prompt_tokens=int(metrics.prompt_tokens),
        cached_tokens=int(metrics.actual_hit_tokens),
        output_tokens=int(metrics.output_tokens),
        ttft=_histogram(metrics.ttft),
        latency=_histogram(metrics.latency),
        queued=len(pool.flow_control),
        queue_wait=_histogram(pool.flow_control.wait),
        curve=pool.decisions.cache_curve.points(pool.decider.rate.bytes_per_token),
        replicas=[_replica(replica, now) for replica in pool.fleet],
    )


def _replica(replica: Replica, now: float) -> ReplicaReport:
    totals = replica.totals
    return ReplicaReport(
        id=replica.id,
        state=replica.shown_state,
        why=replica.reason(now),
        in_flight=replica.load.routed,
        routed=totals.routed,
        failed=totals.failed,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.hit_tokens,
        output_tokens=totals.output_tokens,
    )


def _histogram(histogram: BufferedHistogram) -> HistogramReport:
    histogram.flush()
    return HistogramReport(list(histogram.bounds), histogram.cumulative, histogram.sum)
