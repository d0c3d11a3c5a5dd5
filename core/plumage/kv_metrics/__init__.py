"""The article's metrics of a cache under load (section 3.1): repeated prefill, usage over time, throughput, latency.

Pure: an engine's hooks and benchmarks in virtual time report to these classes what happened. The cache hit ratio (CHR)
needs no class: engines count prompt tokens and cached ones.
"""

from __future__ import annotations

from plumage.kv_metrics.eviction_latency import EvictionLatency
from plumage.kv_metrics.prefill_work import PrefillCost, PrefillWork
from plumage.kv_metrics.saturation import BATCHES, CONTEXTS, Saturation
from plumage.kv_metrics.seen_blocks import SeenBlocks
from plumage.kv_metrics.usage_sums import UsageSums

__all__ = [
    "BATCHES",
    "CONTEXTS",
    "EvictionLatency",
    "PrefillCost",
    "PrefillWork",
    "Saturation",
    "SeenBlocks",
    "UsageSums",
]
