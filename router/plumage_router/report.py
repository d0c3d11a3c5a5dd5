"""What this router tells the operator (`plumage.fleet_report`)."""

from __future__ import annotations

from plumage.fleet_report import HistogramReport, ReplicaReport, RouterReport
from plumage_router.clock import monotonic, wall
from plumage_router.gateway import Gateway
from plumage_router.metrics import Histogram
from plumage_router.replicas import Replica

__all__ = ["fleet_report"]


def fleet_report(gateway: Gateway) -> RouterReport:
    """As of now."""
    now, metrics, hold = monotonic(), gateway.metrics, gateway.hold
    return RouterReport(
        pool=gateway.config.pool,
        router=gateway.name,
        at=wall(),
        started=gateway.started,
        serving=gateway.serving and not gateway.leaving,
        listed=gateway.membership.listed,
        membership_error=gateway.membership.error,
        config_error=gateway.config_error,
        directory="Degraded" if gateway.degraded else "Fresh",
        in_flight=len(gateway.flights),
        requests=metrics.requests,
        held=len(hold),
        oldest_held=round(hold.oldest(now), 3),
        held_total=hold.total,
        held_refused=hold.refused,
        wanting=hold.wanting(now),
        prompt_tokens=int(metrics.prompt_tokens),
        cached_tokens=int(metrics.actual_hit_tokens),
        output_tokens=int(metrics.output_tokens),
        ttft=_histogram(metrics.ttft),
        latency=_histogram(metrics.latency),
        held_wait=_histogram(hold.wait),
        curve=gateway.reuse.points(gateway.decider.rate.bytes_per_token),
        replicas=[_replica(replica, now) for replica in gateway.fleet],
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


def _histogram(histogram: Histogram) -> HistogramReport:
    histogram.settle()
    return HistogramReport(list(histogram.bounds), histogram.reached, histogram.total)
