"""Real vLLM on an NVIDIA H200: the shape of Llama 3 8B in bf16 with random weights, without torch.compile."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim, at_least
from plumage_bench.evidence.derived import feather_ratio, rounds_ratio
from plumage_bench.evidence.figures import Key

__all__ = ["CLAIMS"]

_FEATHER, _HOTPREFIX = "vllm-feather-gpu", "vllm-hotprefix-gpu"
_GAIN = "HotPrefix: 1.55 to 2.25"


def _parts(cell: str) -> tuple[Claim, ...]:
    return (
        Claim("… Predictive ÷ the tree's order", _FEATHER, feather_ratio(cell, "predictive", "order")),
        Claim("… FCFS with a sorted batch ÷ FCFS", _FEATHER, feather_ratio(cell, "FCFS sorted", "FCFS")),
        Claim("… the tree's order with a sorted batch ÷ the order", _FEATHER,
              feather_ratio(cell, "order sorted", "order")),
    )  # fmt: skip


CLAIMS = (
    Claim("Decode attention over different prefixes ÷ one shared, batch of 64, 4k, FlashAttention 3",
          "attention-premise-gpu", Key("different_over_shared", pairs=20, low="low")),
    Claim("… eight prefixes, their requests interleaved in the batch ÷ adjacent", "attention-premise-gpu",
          Key("mixed_over_adjacent")),
    Claim("8 groups × 4k, batch of 64: the default manifest's order, eviction and batch limit as in vLLM ÷ FCFS, "
          "output tokens a second", _FEATHER,
          feather_ratio("8 × 4k", "product", "FCFS"), at_least(1, by_bound=True)),
    Claim("… part of the ceiling that one group sets", _FEATHER, feather_ratio("8 × 4k", "product", "one group"),
          at_least(0.85)),
    Claim("… FCFS ÷ itself: the noise", _FEATHER, feather_ratio("8 × 4k", "FCFS again", "FCFS")),
    *_parts("8 × 4k"),
    Claim("32 groups × 4k: the tree's order ÷ FCFS", _FEATHER, feather_ratio("32 × 4k", "order", "FCFS"),
          at_least(1, by_bound=True)),
    Claim("… part of the ceiling that one group sets", _FEATHER, feather_ratio("32 × 4k", "order", "one group"),
          at_least(0.85)),
    *_parts("32 × 4k"),
    Claim("Nothing shared: the default manifest's order ÷ FCFS", "vllm-feather-gpu-unshared",
          feather_ratio("no sharing, 1k", "product", "FCFS"), at_least(0.97, by_bound=True)),
    Claim("… the tree's order ÷ FCFS", "vllm-feather-gpu-unshared",
          feather_ratio("no sharing, 1k", "order", "FCFS"), at_least(0.97, by_bound=True)),
    Claim("HotPrefix, CEVAL-like questions, KV cache of 25 %: A+P ÷ vLLM with LRU, requests a second", _HOTPREFIX,
          Key("A_P_over_lru"), at_least(1.55), _GAIN),
    Claim("… the default manifest with host memory ÷ vLLM with LRU", _HOTPREFIX, Key("product_over_lru"),
          at_least(1.55), _GAIN),
    Claim("… eviction by hotness alone ÷ vLLM with LRU", _HOTPREFIX, Key("E_over_lru")),
    Claim("… mean time to first token, vLLM with LRU ÷ the default manifest with host memory", _HOTPREFIX,
          Key("product_ttft"), at_least(1.55), _GAIN),
    Claim("… vLLM's own offloading ÷ vLLM with LRU", _HOTPREFIX, Key("offloading_over_lru")),
    Claim("… A+P ÷ vLLM's own offloading at the second use", _HOTPREFIX, rounds_ratio("A+P", "offloading, 2"),
          at_least(1)),
    Claim("… the default manifest with host memory ÷ vLLM's own offloading at the second use", _HOTPREFIX,
          rounds_ratio("product", "offloading, 2"), at_least(1)),
)  # fmt: skip
