"""What a completed request adds to the metrics, the replica's totals, the audit record and the access log."""

from __future__ import annotations

from typing import Any

from plumage_router.fleet.replicas import Totals
from plumage_router.metrics import Metrics
from plumage_router.proxy.attempt import Attempt
from plumage_router.request.prompt import Prompt
from plumage_router.request.usage import Usage
from plumage_router.routing.audit import Record
from plumage_router.routing.decider import Decision

__all__ = ["access_fields", "account"]


def account(metrics: Metrics, attempt: Attempt, arrived: float, record: Record) -> None:
    """A complete answer came. arrived: when the request did, in seconds of the router's clock."""
    decision = attempt.decision
    ticket, usage = decision.ticket, attempt.reader.usage
    metrics.latency.observe(attempt.last_at - arrived)
    if attempt.streams and ticket.predicted_ttft is not None:
        metrics.ttft_error.observe(attempt.first_at - attempt.sent_at - ticket.predicted_ttft)
    if ticket.predicted_latency is not None:
        metrics.latency_error.observe(attempt.last_at - attempt.sent_at - ticket.predicted_latency)
    _count_tokens(metrics, attempt.replica.totals, decision, usage)
    record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    record.output_tokens = usage.output_tokens


def _count_tokens(metrics: Metrics, totals: Totals, decision: Decision, usage: Usage) -> None:
    predicted = decision.ticket.hit_tokens
    metrics.predicted_hit_tokens += predicted
    totals.predicted_hit_tokens += int(predicted)
    if usage.prompt_tokens is not None:
        metrics.prompt_tokens += usage.prompt_tokens
        totals.prompt_tokens += usage.prompt_tokens
    if usage.output_tokens is not None:
        metrics.output_tokens += usage.output_tokens
        totals.output_tokens += usage.output_tokens
    if usage.cached_tokens is None:
        metrics.usage_missing += 1
        return
    metrics.actual_hit_tokens += usage.cached_tokens
    totals.hit_tokens += usage.cached_tokens
    if decision.prompt.plain:
        metrics.hit_error.observe(usage.cached_tokens - predicted)
        totals.hit_error += int(predicted) - usage.cached_tokens
        totals.compared_tokens += usage.prompt_tokens or 0


def access_fields(prompt: Prompt | None, record: Record | None, seconds: float) -> dict[str, Any]:
    """The fields of an access log line that describe prompt, replica and answer. seconds: the request's duration."""
    fields: dict[str, Any] = {"seconds": round(seconds, 6)}
    if prompt is not None:
        fields |= {"model": prompt.model, "stream": prompt.stream}
    if record is not None:
        fields |= {
            "replica": record.replica,
            "ttftSeconds": round(record.ttft, 6) if record.ttft is not None else None,
            "promptTokens": record.prompt_tokens,
            "cachedTokens": record.cached_tokens,
            "outputTokens": record.output_tokens,
        }
    return fields
