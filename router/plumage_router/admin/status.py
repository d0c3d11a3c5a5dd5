"""The status document for people, and the metrics for scrapers.

Status (`GET /plumage/v1/status`), camelCase JSON, times in seconds, tokens in tokens:
    {"pool", "router", "policy", "model", "serving", "directory": "Fresh" | "Degraded", "membershipError": str | null,
     "configError": str | null, "keysError": str | null, "waitingRequests", "unservedRequests",
     "replicas": [{"id", "state", "why", "breaker", "cacheKnown", "running", "waiting", "kvUsage", "inFlight", "routed",
                   "finished", "failed", "abandoned", "promptTokens", "hitTokens", "predictedHitTokens", "hitRatio"}],
     "decisions": [the latest, newest first, as `Record.document`],
     "hottest": [{"chunk", "tokens", "count"}],
     "totals": {"requests", "inFlight", "connections", "retries", "aborted", "truncated", "errors", "promptTokens",
                "hitTokens", "predictedHitTokens", "hitRatio", "prefixLostTokens": {cause: tokens},
                "decisionMeanMicroseconds", "bytesPerToken"},
     "shadow": {"policy", "same", "other", "errors", "promptTokens", "hitTokens": {"policy", "shadow"},
                "busiestShare": {"policy", "shadow"}} | null,
     "quotas": [{"tenant", "limit", "used", "most"}], "queue": [{"class", "weight", "waiting", "passed"}]}
`state` is Ready | Warming | Draining | Cordoned | Stalled | Unhealthy. `why`: the reason that a replica is not
available, null while it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

from plumage.prometheus.exposition import counter, counters, gauge, gauges, wanted_page
from plumage.routing.adapters import AdapterState
from plumage_router.admin.process_metrics import process_lines
from plumage_router.clock import monotonic
from plumage_router.fleet.breaker import BreakerState
from plumage_router.fleet.replicas import Replica
from plumage_router.http.tls import tls_lines
from plumage_router.pool_router import PoolRouter
from plumage_router.process.engine_tls import engine_tls_lines
from plumage_router.proxy.live_tracing import LiveTracing
from plumage_router.routing.prefix_breaks import BreakCause
from plumage_router.routing.shadow import Shadow

__all__ = ["metric_lines", "metrics_page", "status_document", "tracing_lines"]

_Family: TypeAlias = Callable[[str, str, str, Mapping[str, float]], Iterator[str]]

_PREFIX = "plumage_router_"

_HOTTEST = 10


def status_document(pool: PoolRouter, *, decisions: int) -> dict[str, Any]:
    """The document above. decisions: how many to include."""
    now = monotonic()
    return {
        "pool": pool.config.pool,
        "router": pool.name,
        "policy": pool.decider.policy.name,
        "model": pool.config.model.name,
        "serving": pool.serving,
        "directory": "Degraded" if pool.directory.degraded else "Fresh",
        "membershipError": pool.membership.error,
        "configError": pool.config_error,
        "keysError": keys_error(pool),
        "waitingRequests": len(pool.wait_queue),
        "unservedRequests": pool.wait_queue.unserved(now),
        "replicas": [_replica(replica, now) for replica in pool.fleet],
        "decisions": [record.document() for record in pool.decisions.audit.latest(decisions)],
        "hottest": pool.decisions.hot_prefixes.top(_HOTTEST),
        "totals": _totals(pool),
        "shadow": _shadow(pool.decider.shadow),
        "quotas": pool.quotas.document(),
        "queue": pool.flow_control.document(),
    }


def keys_error(pool: PoolRouter) -> str | None:
    """Why a key file or a secret is not in force; None while all are."""
    return "; ".join(error for error in (pool.port_keys_error, pool.engines.error) if error) or None


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


def _totals(pool: PoolRouter) -> dict[str, Any]:
    metrics = pool.metrics
    decisions = metrics.decision.count
    return {
        "requests": metrics.requests,
        "inFlight": len(pool.in_flight),
        "connections": len(pool.connections),
        "retries": sum(metrics.retries.values()),
        "aborted": metrics.aborted,
        "truncated": metrics.truncated,
        "errors": dict(metrics.errors),
        "promptTokens": int(metrics.prompt_tokens),
        "hitTokens": int(metrics.actual_hit_tokens),
        "predictedHitTokens": int(metrics.predicted_hit_tokens),
        "hitRatio": _ratio(metrics.actual_hit_tokens, metrics.prompt_tokens),
        "prefixLostTokens": dict(pool.decisions.prefix_breaks.lost_tokens),
        "decisionMeanMicroseconds": round(metrics.decision.sum / decisions * 1e6, 1) if decisions else None,
        "bytesPerToken": round(pool.decider.rate.bytes_per_token, 3),
    }


def _shadow(shadow: Shadow | None) -> dict[str, Any] | None:
    """How a second policy would have chosen."""
    if shadow is None:
        return None
    shadows, used = shadow.busiest()
    return {
        "policy": shadow.policy.name,
        "same": shadow.same,
        "other": shadow.other,
        "errors": shadow.errors,
        "promptTokens": round(shadow.tokens),
        "hitTokens": {"policy": round(shadow.used_hit_tokens), "shadow": round(shadow.hit_tokens)},
        "busiestShare": {"policy": round(used, 4), "shadow": round(shadows, 4)},
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def metrics_page(pool: PoolRouter, accept: str) -> tuple[str, str]:
    """All metrics in a format that the scraper accepts, and the content type."""
    return wanted_page(accept, metric_lines(pool), tracing_lines(pool.tracing), process_lines())


def metric_lines(pool: PoolRouter) -> Iterator[str]:
    """The lines of all families."""
    own = (
        pool.metrics.lines(),
        _gauges(pool),
        _prefix_breaks(pool),
        _adapters(pool),
        _waiting(pool),
        _per_replica(pool),
    )
    return chain(*own, pool.directory.metric_lines())


def _gauges(pool: PoolRouter) -> Iterator[str]:
    single = (
        ("in_flight", "Requests in flight.", len(pool.in_flight)),
        ("connections", "Client connections.", len(pool.connections)),
        ("buffered_bytes", "Bytes of request bodies in memory.", pool.body_memory.used),
        (
            "quarantined_bodies",
            "Bodies refused because engines failed on them.",
            pool.quarantine.refused(monotonic()),
        ),
        ("degraded", "1 while the directory is away or stale.", int(pool.directory.degraded)),
        ("mirror_chunks", "Chunks in the mirror.", len(pool.decider.mirror)),
        ("bytes_per_token", "Learned bytes per prompt token.", pool.decider.rate.bytes_per_token),
    )
    for name, text, value in single:
        yield from gauge(_PREFIX + name, text, value)
    if pool.access_log is not None:
        text = "Lines of the access log that could not be written, with those of the usage log in it."
        yield from counter(_PREFIX + "access_log_dropped", text, pool.access_log.dropped)
    elif pool.usage_log is not None:
        text = "Lines of the usage log that could not be written."
        yield from counter(_PREFIX + "usage_log_dropped", text, pool.usage_log.lines.dropped)
    yield from _entries(pool)
    yield from tls_lines(_PREFIX, pool.tls_acceptors)
    yield from engine_tls_lines(_PREFIX, pool.engines.tls)
    yield from _shadow_lines(pool.decider.shadow)
    yield from pool.usage.lines()
    yield from pool.quotas.lines()
    yield from pool.flow_control.lines()
    text = "Replicas that got no requests for a while because they failed more often than the others."
    yield from counter(_PREFIX + "ejections", text, pool.outliers.ejections)
    yield from counter(_PREFIX + "quarantines", "Quarantines of bodies that engines failed on.", pool.quarantine.begun)


def _entries(pool: PoolRouter) -> Iterator[str]:
    """Yields sizes that distinguish a leak from a store that fills up.

    The last four are empty some seconds after the last request, except for idle connections.
    """
    sizes = {
        "audit": len(pool.decisions.audit),
        "prefixBreaks": len(pool.decisions.prefix_breaks),
        "hotPrefixes": len(pool.decisions.hot_prefixes),
        "quarantine": len(pool.quarantine.cases),
        "usage": len(pool.usage.sums),
        "quotas": len(pool.quotas),
        "pendingOwners": pool.decider.mirror.pending,
        "bodies": len(pool.body_memory),
        "slicedWork": len(pool.time_slicer),
        "upstream": sum(len(replica.connections) for replica in pool.fleet),
    }
    yield from gauges(_PREFIX + "entries", "Entries of stores, all of them bounded.", "store", sizes)


def tracing_lines(live: LiveTracing) -> Iterator[str]:
    """Yields the lines of the process; none while it does not trace."""
    if (tracing := live.current) is None:
        return
    spans = {"exported": tracing.exported, "failed": tracing.failed}
    yield from counters(_PREFIX + "spans", "Spans of traced requests, by what became of them.", "outcome", spans)
    text = "Requests that were not traced because too many spans waited for the collector."
    yield from counter(_PREFIX + "untraced_requests", text, tracing.skipped)


def _shadow_lines(shadow: Shadow | None) -> Iterator[str]:
    if shadow is None:
        return
    choices = {"same": shadow.same, "other": shadow.other}
    text = "Decisions of the shadow policy, by whether the policy in use chose the same replica."
    yield from counters(_PREFIX + "shadow_decisions", text, "choice", choices)
    tokens = {"policy": shadow.used_hit_tokens, "shadow": shadow.hit_tokens}
    text = "Prompt tokens that were cached at the chosen replicas, by who chose."
    yield from counters(_PREFIX + "shadow_cached_tokens", text, "chooser", tokens)
    yield from counter(_PREFIX + "shadow_errors", "Errors of the shadow policy.", shadow.errors)


def _prefix_breaks(pool: PoolRouter) -> Iterator[str]:
    """Yields the metrics of conversations whose clients change early bytes of the prompt."""
    breaks = pool.decisions.prefix_breaks
    families = (
        ("prefix_breaks", "Prompts whose early bytes changed since the previous turn, by cause.", breaks.counts),
        ("prefix_lost_tokens", "Prompt tokens that such a change kept from the cache, by cause.", breaks.lost_tokens),
    )
    for name, text, values in families:
        yield from counters(_PREFIX + name, text, "cause", {cause: values[cause] for cause in BreakCause})


def _adapters(pool: PoolRouter) -> Iterator[str]:
    """Yields the lines of a pool with LoRA adapters."""
    text = "Requests for a LoRA adapter, by what it found at the chosen replica; one that waits has no slot there."
    requests = pool.decider.adapters.requests
    counts: dict[str, float] = {state: requests[state] for state in AdapterState}
    yield from counters(_PREFIX + "adapter_requests", text, "state", counts)


def _waiting(pool: PoolRouter) -> Iterator[str]:
    """Requests without a replica, and whether members, configuration and keys are in force."""
    queue, prefix = pool.wait_queue, _PREFIX
    yield from gauge(prefix + "waiting_requests", "Requests that wait for a replica.", len(queue))
    yield from gauge(
        prefix + "unserved_requests", "Requests of the last minute that found no replica.", queue.unserved(monotonic())
    )
    yield from counter(prefix + "waited_requests", "Requests that waited for a replica.", queue.total)
    yield from counter(
        prefix + "turned_away_requests", "Requests without a replica that were turned away.", queue.refused
    )
    yield from queue.wait.lines(prefix + "wait_seconds", "Time that requests waited for a replica.")
    yield from gauge(
        prefix + "membership_stale", "1 while the source of the members fails.", pool.membership.error is not None
    )
    yield from gauge(
        prefix + "config_stale", "1 while a part of the configuration file is not in force.", bool(pool.config_error)
    )
    yield from gauge(prefix + "keys_stale", "1 while a changed key file cannot be used.", keys_error(pool) is not None)
    yield from gauge(prefix + "config_ignored_fields", "Ignored settings of a newer operator.", pool.config_ignored)


def _per_replica(pool: PoolRouter) -> Iterator[str]:
    columns: tuple[tuple[_Family, str, str, Callable[[Replica], float]], ...] = (
        (gauges, "in_flight", "Requests of this router in flight.", lambda r: r.load.routed),
        (counters, "routed", "Requests sent to the replica.", lambda r: r.totals.routed),
        (counters, "failed", "Requests that failed on the replica.", lambda r: r.totals.failed),
        (counters, "abandoned", "Requests abandoned on the replica.", lambda r: r.totals.abandoned),
        (counters, "hit_tokens", "Prompt tokens found in the replica's cache.", lambda r: r.totals.hit_tokens),
        (counters, "prompt_tokens", "Prompt tokens as the replica counted them.", lambda r: r.totals.prompt_tokens),
        (
            gauges,
            "breaker_open",
            "1 unless the replica's breaker is closed.",
            lambda r: r.breaker.state is not BreakerState.CLOSED,
        ),
        (gauges, "ready", "1 while the replica's state is Ready.", lambda r: r.shown_state == "Ready"),
    )
    for family, name, text, read in columns:
        values = {replica.id: read(replica) for replica in pool.fleet}
        yield from family(f"{_PREFIX}replica_{name}", text, "replica", values)
