"""Parses what only the operator needs of an engine's /metrics: histograms, cache size, requests held back.

Names are vLLM's, which the simulator has too. Series of several models or ranks add up. What is missing is 0 or empty.
`plumage_engine_held_back` comes from FEATHER; an engine without it holds no request back on purpose.
Pure. It is apart from the load, because the load is read all the time and this only on request.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from plumage.fleet_report import HistogramReport

__all__ = ["EngineFigures", "parse_figures"]

_QUEUE: Final = "vllm:request_queue_time_seconds"
_TTFT: Final = "vllm:time_to_first_token_seconds"
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class EngineFigures(NamedTuple):
    """cache_tokens: blocks × tokens a block. held_back: of the waiting requests. output_tokens: a counter."""

    queue_wait: HistogramReport = HistogramReport()
    ttft: HistogramReport = HistogramReport()
    cache_tokens: int = 0
    output_tokens: int = 0
    held_back: int = 0


def parse_figures(text: str) -> EngineFigures:
    """Lines that can't be read are skipped."""
    buckets: dict[str, dict[float, float]] = {_QUEUE: defaultdict(float), _TTFT: defaultdict(float)}
    sums: dict[str, float] = defaultdict(float)
    cache = 0.0
    for name, labels, value in _samples(text):
        family = name.removesuffix("_bucket")
        if family in buckets and family != name:
            buckets[family][_number(labels.get("le", ""))] += value
        elif name == "vllm:cache_config_info":
            cache += _number(labels.get("block_size", "0")) * _number(labels.get("num_gpu_blocks", "0"))
        else:
            sums[name] += value
    return EngineFigures(
        queue_wait=_histogram(buckets[_QUEUE], sums[f"{_QUEUE}_sum"]),
        ttft=_histogram(buckets[_TTFT], sums[f"{_TTFT}_sum"]),
        cache_tokens=int(cache),
        output_tokens=int(sums["vllm:generation_tokens_total"]),
        held_back=int(sums["plumage_engine_held_back"]),
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        if line.startswith(("vllm:", "plumage_engine_")) and (found := _SAMPLE.match(line)):
            yield found[1], dict(_LABEL.findall(found[2] or "")), _number(found[3])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value == value else 0.0


def _histogram(buckets: dict[float, float], total: float) -> HistogramReport:
    if not buckets:
        return HistogramReport()
    bounds = sorted(buckets)
    counts = [int(buckets[bound]) for bound in bounds]
    finite = [bound for bound in bounds if bound != float("inf")]
    return HistogramReport(finite, counts if len(finite) < len(counts) else [*counts, counts[-1]], total)
