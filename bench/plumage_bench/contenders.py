"""Who is compared: a routing policy with its options, and the eviction policy of the engines behind it.

Every baseline has the settings of its product and leaf-LRU below it. The paper's main baseline is SGLang's cache-aware
routing in the authors' fork; the gateway's own defaults are listed beside it, because at a shared ratio of one half the
fork's match threshold of one half never passes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plumage.routing import RoutingPolicy, make_policy

__all__ = ["BASELINES", "CACHE_AWARE", "DECAYS", "MATRIX", "OURS", "QUICK_RIVALS", "Contender"]

_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, eq=False)
class Contender:
    """Known by its label. `counts_characters`: the policy's tree is bounded in characters, so it must know how many a
    block stands for."""

    label: str
    policy: str
    eviction: str = "Lru"
    options: Mapping[str, Any] = field(default_factory=dict)
    counts_characters: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contender) and other.label == self.label

    def __hash__(self) -> int:
        return hash(self.label)

    def make(self, seed: int, block_size: int) -> RoutingPolicy:
        options = dict(self.options)
        if self.counts_characters:
            options["chunk_characters"] = block_size * _CHARACTERS_PER_TOKEN
        return make_policy(self.policy, rng=random.Random(f"policy-{seed}"), **options)


def _cache_aware(eviction: str) -> Contender:
    return Contender(f"cache-aware + {eviction}", "SglangCacheAware", eviction, counts_characters=True)


def _lbgr(eviction: str) -> Contender:
    return Contender(f"Lbgr + {eviction}", "Lbgr", eviction)


CACHE_AWARE = _cache_aware("Lru")
OURS = _lbgr("Hotness")

# {cache-aware, LBGR} × {LRU, RLT, hotness}, as in KVRouting's Table 2 with hotness added.
MATRIX = tuple(make(eviction) for make in (_cache_aware, _lbgr) for eviction in ("Lru", "Rlt", "Hotness"))

_GATEWAY = Contender(
    "SGLang gateway (Python)", "SglangCacheAware", options={"preset": "gateway-python"}, counts_characters=True
)

BASELINES = (
    CACHE_AWARE,
    _GATEWAY,
    Contender("LBGR, the paper's form", "LbgrPaper"),
    Contender("LBGR, the authors' code", "LbgrCode", counts_characters=True),
    Contender("PrefixAware", "PrefixAware"),
    Contender("llm-d", "LlmD"),
    Contender("llm-d, precise", "LlmD", options={"precise": True}),
    Contender("Dynamo", "Dynamo"),
    Contender("AIBrix", "AIBrix"),
    Contender("production-stack", "ProductionStack"),
    Contender("production-stack, load-aware", "ProductionStack", options={"load_aware": True}),
    Contender("KubeAI", "KubeAI"),
    Contender("least load", "LeastLoad"),
    Contender("power of two", "PowerOfTwo"),
    Contender("round robin", "RoundRobin"),
    Contender("random", "Random"),
)

# KVRouting's sweep of how often W decays by 1/32. Ours drains in real time and has no such interval.
DECAYS = tuple(
    Contender(
        f"{label}, {milliseconds} ms", policy, options={"decay_interval": milliseconds / 1000}, counts_characters=own
    )
    for label, policy, own in (("paper's form", "LbgrPaper", False), ("authors' code", "LbgrCode", True))
    for milliseconds in (10, 20, 40, 80)
)

# The strongest of the baselines on some workload: who a quick run searches rates for.
QUICK_RIVALS = tuple(
    contender
    for contender in BASELINES
    if contender.label in ("cache-aware + Lru", "LBGR, the authors' code", "llm-d, precise")
)
