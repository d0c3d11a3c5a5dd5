"""What the router tells people and scrapers about itself: the status document and the metrics' text.

Status (`GET /plumage/v1/status`), camelCase JSON, times in seconds, tokens in tokens:
    {"pool", "router", "policy", "model", "serving", "directory": "Fresh" | "Degraded", "membershipError": str | null,
     "configError": str | null, "held", "wanting",
     "replicas": [{"id", "state", "why", "breaker", "cacheKnown", "running", "waiting", "kvUsage", "inFlight", "routed",
                   "finished", "failed", "abandoned", "promptTokens", "hitTokens", "predictedHitTokens", "hitRatio"}],
     "decisions": [the last ones, newest first, as `Record.document`],
     "hottest": [{"chunk", "tokens", "count"}],
     "totals": {"requests", "inFlight", "connections", "retries", "aborted", "truncated", "errors", "promptTokens",
                "hitTokens", "predictedHitTokens", "hitRatio", "decisionMeanMicroseconds", "bytesPerToken"}}
`state` is Ready | Warming | Draining | Cordoned | Stalled | Unhealthy; `why` says why a replica is not chosen, null
when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

from plumage.exposition import counter, counters, gauge, gauges, wanted_page
from plumage_router.breaker import BreakerState
from plumage_router.clock import monotonic
from plumage_router.gateway import Gateway
from plumage_router.process import process_lines
from plumage_router.replicas import Replica

__all__ = ["metric_lines", "metrics_page", "status_document"]

_Family: TypeAlias = Callable[[str, str, str, Mapping[str, float]], Iterator[str]]

_PREFIX = "plumage_router_"

HOTTEST = 10


def status_document(gateway: Gateway, *, decisions: int) -> dict[str, Any]:
    """The document above."""
    now = monotonic()
    return {
        "pool": gateway.config.pool,
        "router": gateway.name,
        "policy": gateway.policy.name,
        "model": gateway.config.model.name,
        "serving": gateway.serving,
        "directory": "Degraded" if gateway.degraded else "Fresh",
        "membershipError": gateway.membership.error,
        "configError": gateway.config_error,
        "keysError": keys_error(gateway),
        "held": len(gateway.hold),
        "wanting": gateway.hold.wanting(now),
        "replicas": [_replica(replica, now) for replica in gateway.fleet],
        "decisions": [record.document() for record in gateway.audit.latest(decisions)],
        "hottest": gateway.hottest.top(HOTTEST),
        "totals": _totals(gateway),
    }


def keys_error(gateway: Gateway) -> str | None:
    """Why a file of keys or a secret is not in force; None while all are."""
    return "; ".join(error for error in (gateway.auth.error, gateway.secret_error) if error) or None


def _replica(replica: Replica, now: float) -> dict[str, Any]:
    load, totals = replica.load, replica.totals
    return {
        "id": replica.id,
        "state": replica.shown_state,
        "why": replica.reason(now),
        "breaker": replica.breaker.state,
        "cacheKnown": replica.cache_known,
        "running": load.running,
        "waiting": load.waiting,
        "kvUsage": round(load.kv_usage, 4),
        "inFlight": load.routed,
        "routed": totals.routed,
        "finished": totals.finished,
        "failed": totals.failed,
        "abandoned": totals.abandoned,
        "promptTokens": totals.prompt_tokens,
        "hitTokens": totals.hit_tokens,
        "predictedHitTokens": totals.predicted_hit_tokens,
        "hitRatio": _ratio(totals.hit_tokens, totals.prompt_tokens),
    }


def _totals(gateway: Gateway) -> dict[str, Any]:
    metrics = gateway.metrics
    decisions = metrics.decision.count
    return {
        "requests": metrics.requests,
        "inFlight": len(gateway.flights),
        "connections": len(gateway.connections),
        "retries": sum(metrics.retries.values()),
        "aborted": metrics.aborted,
        "truncated": metrics.truncated,
        "errors": dict(metrics.errors),
        "promptTokens": int(metrics.prompt_tokens),
        "hitTokens": int(metrics.actual_hit_tokens),
        "predictedHitTokens": int(metrics.predicted_hit_tokens),
        "hitRatio": _ratio(metrics.actual_hit_tokens, metrics.prompt_tokens),
        "decisionMeanMicroseconds": round(metrics.decision.total / decisions * 1e6, 1) if decisions else None,
        "bytesPerToken": round(gateway.decider.rate.bytes_per_token, 3),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def metrics_page(gateway: Gateway, accept: str) -> tuple[str, str]:
    """Everything in the form that a scraper accepts, and its content type."""
    return wanted_page(accept, metric_lines(gateway), process_lines())


def metric_lines(gateway: Gateway) -> Iterator[str]:
    """The lines of all families."""
    fallbacks = counters(
        _PREFIX + "render_fallbacks",
        "Conversations rendered anew: reusing their beginning failed.",
        "error",
        dict(sorted(gateway.reader.fallbacks.items())),
    )
    own = (gateway.metrics.lines(), _gauges(gateway), _held(gateway), fallbacks, _per_replica(gateway))
    return chain(*own, gateway.directory.metric_lines())


def _gauges(gateway: Gateway) -> Iterator[str]:
    single = (
        ("in_flight", "Requests under way.", len(gateway.flights)),
        ("connections", "Client connections.", len(gateway.connections)),
        ("buffered_bytes", "Request bodies held.", gateway.room.held),
        (
            "quarantined_bodies",
            "Bodies refused because engines failed on them.",
            gateway.quarantine.refused(monotonic()),
        ),
        ("degraded", "1 while the directory is away or too old.", int(gateway.degraded)),
        ("mirror_chunks", "Chunks in the mirror.", len(gateway.decider.mirror)),
        ("bytes_per_token", "Bytes a prompt token, learned.", gateway.decider.rate.bytes_per_token),
    )
    for name, text, value in single:
        yield from gauge(_PREFIX + name, text, value)
    if gateway.access is not None:
        text = "Lines of the access log that could not be written."
        yield from counter(_PREFIX + "access_log_dropped", text, gateway.access.dropped)
    yield from counter(
        _PREFIX + "quarantines", "Quarantines of bodies that engines failed on.", gateway.quarantine.begun
    )


def _held(gateway: Gateway) -> Iterator[str]:
    """Requests without a replica, and whether what is known of replicas is fresh."""
    hold, prefix = gateway.hold, _PREFIX
    yield from gauge(prefix + "held", "Requests that wait for a replica.", len(hold))
    yield from gauge(
        prefix + "wanting", "Requests that found no replica, of the last minute.", hold.wanting(monotonic())
    )
    yield from counter(prefix + "held_requests", "Requests that waited for a replica.", hold.total)
    yield from counter(prefix + "held_refused", "Requests without a replica told to come back.", hold.refused)
    yield from hold.wait.lines(prefix + "held_seconds", "What requests waited for a replica.")
    yield from gauge(
        prefix + "membership_stale", "1 while the members' source fails.", gateway.membership.error is not None
    )
    yield from gauge(
        prefix + "config_stale", "1 while the file asks for more than is in force.", bool(gateway.config_error)
    )
    yield from gauge(
        prefix + "keys_stale", "1 while a file of keys changed and can't be used.", keys_error(gateway) is not None
    )
    yield from gauge(
        prefix + "config_ignored_fields", "Settings of a newer operator, passed over.", gateway.config_ignored
    )


def _per_replica(gateway: Gateway) -> Iterator[str]:
    columns: tuple[tuple[_Family, str, str, Callable[[Replica], float]], ...] = (
        (gauges, "in_flight", "Requests of this router under way.", lambda r: r.load.routed),
        (counters, "routed", "Requests sent to the replica.", lambda r: r.totals.routed),
        (counters, "failed", "Requests that failed there.", lambda r: r.totals.failed),
        (counters, "abandoned", "Requests given up there.", lambda r: r.totals.abandoned),
        (counters, "hit_tokens", "Prompt tokens found in its cache.", lambda r: r.totals.hit_tokens),
        (counters, "prompt_tokens", "Prompt tokens as it counted them.", lambda r: r.totals.prompt_tokens),
        (
            gauges,
            "breaker_open",
            "1 unless its breaker is closed.",
            lambda r: r.breaker.state is not BreakerState.CLOSED,
        ),
        (gauges, "ready", "1 while its state is Ready.", lambda r: r.shown_state == "Ready"),
    )
    for family, name, text, read in columns:
        values = {replica.id: read(replica) for replica in gateway.fleet}
        yield from family(f"{_PREFIX}replica_{name}", text, "replica", values)
