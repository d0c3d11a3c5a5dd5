"""Parses an engine's /metrics page: its load, and the figures that only the operator needs. Pure.

Both read vLLM's metric names, which the simulator uses too, and ignore the others. Series of several data-parallel
ranks or models add up. What the page lacks is 0 or empty. The load is read all the time, the figures on request only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

from plumage.fleet_report import HistogramReport
from plumage.prometheus.parser import Buckets, amount, buckets_of, samples

__all__ = ["EngineFigures", "EngineLoad", "parse_figures", "parse_load"]

_OUTPUT: Final = "vllm:generation_tokens_total"
_HELD_BACK: Final = "plumage_engine_held_back"
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:prefix_cache_queries_total": "query_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
    "process_start_time_seconds": "started",
    _HELD_BACK: "held_back",
}
_ADAPTERS = "vllm:lora_requests_info"  # a series for each set of names so far; its value is the time of its last report
_STEPS = frozenset(("vllm:iteration_tokens_total_count", _OUTPUT, "vllm:prompt_tokens_total"))
_SUMMED: Final = frozenset({_OUTPUT, _HELD_BACK})  # of the operator's figures


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """steps: a number that changes with every step that computed something; its size means nothing.
    started: when its process began, in seconds since 1970; 0 where the page has none (several API servers).
    held_back: of the waiting requests, those that FEATHER holds back on purpose.
    running_adapters: the LoRA adapters with running requests."""

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    query_tokens: float = 0.0
    hit_tokens: float = 0.0
    steps: float = 0.0
    started: float = 0.0
    held_back: float = 0.0
    running_adapters: tuple[str, ...] = ()


def parse_load(text: str) -> EngineLoad:
    """A figure that the page lacks is 0: every one of them is optional to an engine."""
    found: dict[str, float] = {}
    adapters, newest = "", 0.0
    for sample in samples(text, ("vllm:", "process_start_time_seconds", _HELD_BACK)):
        if sample.name == _ADAPTERS and sample.value >= newest:
            adapters, newest = sample.labels.get("running_lora_adapters", ""), sample.value
        key = _GAUGES.get(sample.name) or ("steps" if sample.name in _STEPS else None)
        if key is not None:
            found[key] = found.get(key, 0.0) + sample.value
    return EngineLoad(**found, running_adapters=tuple(filter(None, adapters.split(","))))


class EngineFigures(NamedTuple):
    """cache_tokens: blocks × tokens a block. output_tokens: a counter. held_back: of the waiting requests, by FEATHER;
    an engine without it holds none back on purpose."""

    queue_wait: HistogramReport = HistogramReport()
    ttft: HistogramReport = HistogramReport()
    cache_tokens: int = 0
    output_tokens: int = 0
    held_back: int = 0


def parse_figures(text: str) -> EngineFigures:
    """Lines that can't be read are skipped."""
    found = list(samples(text, ("vllm:", "plumage_engine_")))
    sums: dict[str, float] = defaultdict(float)
    cache = 0.0
    for sample in found:
        if sample.name in _SUMMED:
            sums[sample.name] += sample.value
        elif sample.name == "vllm:cache_config_info":
            labels = sample.labels
            cache += amount(labels.get("block_size", "0")) * amount(labels.get("num_gpu_blocks", "0"))
    return EngineFigures(
        queue_wait=_histogram(buckets_of(found, "vllm:request_queue_time_seconds")),
        ttft=_histogram(buckets_of(found, "vllm:time_to_first_token_seconds")),
        cache_tokens=int(cache),
        output_tokens=int(sums[_OUTPUT]),
        held_back=int(sums[_HELD_BACK]),
    )


def _histogram(found: Buckets | None) -> HistogramReport:
    return HistogramReport() if found is None else HistogramReport(*found)
