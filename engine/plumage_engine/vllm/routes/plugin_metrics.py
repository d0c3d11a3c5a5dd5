"""The plugin's metrics in vLLM's own /metrics.

The counters live in the engine core, the API server answers /metrics. vLLM's stat loggers carry vLLM's own statistics
only, at every step, so ours are fetched before each scrape. `counters.MEANINGS` lists the counters.
docs/explanation/kv-metrics.md has the formulas of the article's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from plumage_engine.vllm.counters import MEANINGS

__all__ = ["PluginMetrics"]

_LABELS: Mapping[str, str] = {"failures": "feature", "evictions": "policy"}
"""Counters with a label. A count without a value has the empty label."""
_KV_SUMS = (
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


class PluginMetrics:
    """A Prometheus collector over the stats that were fetched last.

    Every counter is exported from the start, at 0; a gauge that the engine can't report is not.
    ignored: fields of a newer operator's settings that this version ignores.
    """

    def __init__(self) -> None:
        self.stats: Mapping[str, Any] = {}
        self.ignored = 0

    def collect(self) -> Iterator[Metric]:
        counters = self.stats.get("counters", {})
        for name, meaning in MEANINGS.items():
            yield _counter(name, meaning, counters.get(name, {}))
        on = GaugeMetricFamily(
            "plumage_engine_feature_on", "1 while a feature works, 0 once it is off", labels=["feature"]
        )
        for feature, state in self.stats.get("features", {}).items():
            on.add_metric([feature], 1.0 if state["on"] else 0.0)
        yield on
        for name, field, meaning in (
            ("held_back", "heldBack", "Requests that FEATHER holds back on purpose"),
            ("batch_limit", "batchLimit", "Requests that may run at once: vLLM's limit, less under memory pressure"),
            ("recorded_blocks", "recordedBlocks", "Cached blocks that a snapshot can list"),
            ("missing_blocks", "missingBlocks", "Cached blocks that no event described: a snapshot leaves them out"),
            ("ranked_chunks", "rankedChunks", "Chunks whose pool-wide hotness the agent reported lately"),
        ):
            if field in self.stats or not self.stats:
                yield GaugeMetricFamily(f"plumage_engine_{name}", meaning, value=self.stats.get(field, 0))
        cost = GaugeMetricFamily(
            "plumage_engine_step_time_seconds",
            "Seconds that one of these adds to a step, as the policy Predictive has fitted them",
            labels=["of"],
        )
        for of, seconds in self.stats.get("stepTime", {}).items():
            cost.add_metric([of], seconds)
        yield cost
        if "stepTimeError" in self.stats or not self.stats:
            error = "Standard deviation of a step's time around Predictive's fit, as a part of it"
            yield GaugeMetricFamily("plumage_engine_step_time_error", error, value=self.stats.get("stepTimeError", 0))
        if "kvMetrics" in self.stats or not self.stats:
            yield from _kv_metrics(self.stats.get("kvMetrics", {}))
        text = "Settings of a newer operator that are ignored"
        yield GaugeMetricFamily("plumage_engine_config_ignored_fields", text, value=self.ignored)


def _counter(name: str, meaning: str, counts: Mapping[str, int]) -> Metric:
    label = _LABELS.get(name)
    if label is None:
        return CounterMetricFamily(f"plumage_engine_{name}", meaning, value=sum(counts.values()))
    family = CounterMetricFamily(f"plumage_engine_{name}", meaning, labels=[label])
    for value, count in (counts or {"": 0}).items():
        family.add_metric([value], count)
    return family


def _kv_metrics(found: Mapping[str, Any]) -> Iterator[Metric]:
    """The article's metrics. found: as `KvMetrics.report` returns it; {} gives families without figures, or at 0."""
    for name, field, meaning in _KV_SUMS:
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
