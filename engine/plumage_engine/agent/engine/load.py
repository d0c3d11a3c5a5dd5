"""Parses an engine's load from its /metrics page. Pure.

`parse_load(text)` reads vLLM's metric names, which the simulator uses too, and ignores the others. Series of several
data-parallel ranks or models add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from plumage.prometheus.parser import samples

__all__ = ["EngineLoad", "parse_load"]

_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:prefix_cache_queries_total": "query_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
    "process_start_time_seconds": "started",
    "plumage_engine_held_back": "held_back",
}
_ADAPTERS = "vllm:lora_requests_info"  # a series for each set of names so far; its value is the time of its last report
_STEPS = frozenset(
    {
        "vllm:iteration_tokens_total_count",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
    }
)


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
    for sample in samples(text, ("vllm:", "process_start_time_seconds", "plumage_engine_held_back")):
        if sample.name == _ADAPTERS and sample.value >= newest:
            adapters, newest = sample.labels.get("running_lora_adapters", ""), sample.value
        key = _GAUGES.get(sample.name) or ("steps" if sample.name in _STEPS else None)
        if key is not None:
            found[key] = found.get(key, 0.0) + sample.value
    return EngineLoad(**found, running_adapters=tuple(filter(None, adapters.split(","))))
