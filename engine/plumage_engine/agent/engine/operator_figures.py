"""Parses what only the operator needs of an engine's /metrics: histograms, cache size, requests held back.

Names are vLLM's, which the simulator has too. Series of several models or ranks add up. What is missing is 0 or empty.
`plumage_engine_held_back` comes from FEATHER; an engine without it holds no request back on purpose.
Pure. It is apart from the load, because the load is read all the time and this only on request.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from plumage.fleet_report import HistogramReport
from plumage.prometheus.parser import Buckets, amount, buckets_of, samples

__all__ = ["EngineFigures", "parse_figures"]

_OUTPUT: Final = "vllm:generation_tokens_total"
_HELD_BACK: Final = "plumage_engine_held_back"
_SUMMED: Final = frozenset({_OUTPUT, _HELD_BACK})


class EngineFigures(NamedTuple):
    """cache_tokens: blocks × tokens a block. held_back: of the waiting requests. output_tokens: a counter."""

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
