"""The article's metrics in Prometheus' form, from the stats of `kv_metrics`.

docs/explanation/kv-metrics.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

__all__ = ["families"]

_SUMS = (
    ("prefill_flops", "prefillFlops", "FLOPs of prefill, by the model's configuration"),
    (
        "repeated_prefill_flops",
        "repeatedPrefillFlops",
        "FLOPs of prefill on blocks whose KV this engine had computed before",
    ),
    ("step_seconds", "stepSeconds", "Time of the engine's steps"),
    ("kv_usage_seconds", "usageSeconds", "KV usage of each step × its seconds"),
    ("kv_usage_squared_seconds", "usageSquaredSeconds", "Square of the KV usage of each step × its seconds"),
)


def families(found: Mapping[str, Any]) -> Iterator[Metric]:
    """found: as `KvMetrics.report` returns it; {} gives families without figures, or at 0."""
    for name, field, meaning in _SUMS:
        yield CounterMetricFamily(f"plumage_engine_{name}", meaning, value=found.get(field, 0.0))
    yield from _batches(found.get("batches", ()))
    best, most = (
        GaugeMetricFamily(f"plumage_engine_{name}", meaning, labels=["context"])
        for name, meaning in (
            ("optimal_batch", "Running requests with the most sustained tokens a second (OBS), by context length"),
            (
                "saturation_tokens_per_second",
                "Most sustained output tokens a second of any batch (TaS), by context length",
            ),
        )
    )
    for context, (batch, rate) in found.get("best", {}).items():
        best.add_metric([context], batch)
        most.add_metric([context], rate)
    yield best
    yield most
    latency = HistogramMetricFamily(
        "plumage_engine_request_seconds",
        "From arrival to the last token; evicting: whether cached blocks were evicted while the request ran",
        labels=["evicting"],
    )
    for evicting, one in found.get("requestSeconds", {}).items():
        latency.add_metric([evicting], [(end, float(count)) for end, count in one["buckets"]], one["sum"])
    yield latency


def _batches(rows: Any) -> Iterator[Metric]:
    tokens, seconds = (
        CounterMetricFamily(f"plumage_engine_{name}", meaning, labels=["context", "running"])
        for name, meaning in (
            ("sustained_tokens", "Output tokens of windows without preemption, by context length and running requests"),
            ("sustained_seconds", "Seconds of all windows, by context length and running requests"),
        )
    )
    for context, batch, generated, took in rows:
        tokens.add_metric([context, str(batch)], generated)
        seconds.add_metric([context, str(batch)], took)
    yield tokens
    yield seconds
