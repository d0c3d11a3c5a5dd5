"""/metrics under the names vLLM uses, so that dashboards, autoscalers and agents need not know which engine it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from plumage.prometheus.histogram import Histogram
from plumage_engine.simulator.engine.device import Device
from plumage_engine.simulator.engine.host_link import HostLink
from plumage_engine.simulator.engine.sim_engine import SimEngine
from plumage_engine.simulator.job import Job

__all__ = ["Metrics"]

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


class Metrics:
    """A collector over one engine's counters; `engine` is set once it exists. ignored: fields of a newer operator's
    settings that are ignored. adapters: gives the adapters that it serves, by name. clock: seconds since 1970."""

    def __init__(
        self,
        model: str,
        ignored: int = 0,
        *,
        adapters: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ignored = ignored
        self._served = adapters
        self._clock = clock
        self.engine: SimEngine | None = None
        self.time_to_first_token = Histogram(_TTFT)
        self.inter_token_latency = Histogram(_ITL)
        self.queue_time = Histogram(_LATENCY)
        self.latency = Histogram(_LATENCY)
        self._ended: Counter[str] = Counter()
        self._labels = {"model_name": model, "engine": "0"}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)  # agents detect a restart by process_start_time_seconds

    def token(self, job: Job, now: float) -> None:
        """`job` has one more token, not yet counted in it."""
        if job.emitted == 0:
            self.time_to_first_token.add(now - job.arrived)
        else:
            self.inter_token_latency.add(now - job.last_token)

    def ended(self, job: Job, reason: str, now: float) -> None:
        """reason: "stop", "length" or "abort"."""
        self._ended[reason] += 1
        self.latency.add(now - job.arrived)

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        if self.engine is not None:
            yield from self._gauges(self.engine)
            if self._served():
                yield from self._adapters(self.engine)
            yield from self._totals(self.engine)
            yield from self._by_label(self.engine)
            yield from self._histograms()
            if self.engine.host is not None:
                yield from self._transfers(self.engine.host, self.engine.settings.device)

    def _gauges(self, engine: SimEngine) -> Iterator[Metric]:
        load, settings = engine.load(), engine.settings
        yield self._gauge("vllm:num_requests_running", "Requests in the running batch.", load.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait.", load.waiting)
        text = "Requests that wait, by reason."
        # Deferred requests wait for a load. Here the blocks of a load are usable in the step that copies them.
        by_reason = self._gauge("vllm:num_requests_waiting_by_reason", text, load.waiting, reason="capacity")
        by_reason.add_metric([*self._labels.values(), "deferred"], 0)
        yield by_reason
        text = "Settings of a newer operator that are ignored."
        yield self._gauge("plumage_engine_config_ignored_fields", text, self._ignored)
        yield self._gauge("plumage_engine_held_back", "Requests that FEATHER holds back on purpose.", engine.held_back)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 0 when idle.", load.kv_usage)
        yield self._gauge(
            "vllm:cache_config_info",
            "The block pools.",
            1,
            block_size=str(settings.block_size),
            num_gpu_blocks=str(settings.cache_blocks),
            num_cpu_blocks=str(settings.host_blocks),
            enable_prefix_caching="True",
        )

    def _adapters(self, engine: SimEngine) -> Iterator[Metric]:
        """vLLM has a series for each set of names so far; here there is the present one only."""
        labels = {
            "max_lora": str(engine.settings.adapter_slots),
            "running_lora_adapters": ",".join(engine.running_adapters()),
            "waiting_lora_adapters": ",".join(engine.waiting_adapters()),
        }
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters with requests.", labels=list(labels))
        family.add_metric(list(labels.values()), self._clock())
        yield family

    def _totals(self, engine: SimEngine) -> Iterator[Metric]:
        counters = engine.counters
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", counters.query_tokens),
            ("vllm:prefix_cache_hits", "Prompt tokens found there.", counters.hit_tokens),
            ("vllm:external_prefix_cache_queries", "Prompt tokens asked of the host.", counters.host_query_tokens),
            ("vllm:external_prefix_cache_hits", "Prompt tokens found there.", counters.host_hit_tokens),
            ("vllm:prompt_tokens", "Prompt tokens.", counters.query_tokens),
            ("vllm:generation_tokens", "Tokens generated.", counters.generated_tokens),
            ("vllm:num_preemptions", "Running requests sent back to wait.", counters.preempted),
        ):
            yield self._counter(name, text, value)

    def _transfers(self, host: HostLink, device: Device) -> Iterator[Metric]:
        """Copying is as long as the link takes for the bytes, steps aside."""
        for name, way, what in (("load", host.loads, "from host memory"), ("store", host.stores, "to host memory")):
            yield self._counter(f"vllm:kv_offload_{name}_bytes", f"Bytes copied {what}.", way.bytes)
            yield self._counter(
                f"vllm:kv_offload_{name}_time", f"Seconds of copying {what}.", device.copying(way.bytes)
            )
            yield self._histogram(f"vllm:kv_offload_{name}_size", f"Bytes of a copy {what}.", way.sizes)

    def _by_label(self, engine: SimEngine) -> Iterator[Metric]:
        counters = engine.counters
        cached = {"device": counters.hit_tokens, "host": counters.host_hit_tokens}
        source = {
            "local_compute": counters.query_tokens - sum(cached.values()),
            "local_cache_hit": cached["device"],
            "external_kv_transfer": cached["host"],
        }
        for name, text, label, values in (
            ("vllm:prompt_tokens_by_source", "Prompt tokens by where they came from.", "source", source),
            ("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", "source", cached),
            ("vllm:request_success", "Requests by how they ended.", "finished_reason", self._ended),
        ):
            family = CounterMetricFamily(name, text, labels=[*self._labels, label])
            for key, value in values.items():
                family.add_metric([*self._labels.values(), key], value)
            yield family

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "From arrival to the first token.", self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between tokens.", self.inter_token_latency),
            ("vllm:request_queue_time_seconds", "From arrival to the running batch.", self.queue_time),
            ("vllm:e2e_request_latency_seconds", "From arrival to the end.", self.latency),
        ):
            yield self._histogram(name, text, histogram)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        bounds = (*map(str, histogram.bounds), "+Inf")
        buckets = list(zip(bounds, map(float, histogram.cumulative), strict=True))
        family.add_metric(list(self._labels.values()), buckets, histogram.sum)
        return family

    def _gauge(self, name: str, text: str, value: float, **labels: str) -> GaugeMetricFamily:
        labels = {**self._labels, **labels}
        family = GaugeMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family
