"""The routing policies that are compared, each with its options and the eviction policy of its engines.

Every baseline has the settings of its product. Each runs twice: with leaf-LRU, as the product's users have it, and with
the eviction of Plumage's default manifest (`equal`), to compare routing alone. Plumage's policy is what the default
manifest deploys. The paper's main baseline is SGLang's cache-aware routing in the authors' fork. The gateway's own
defaults are listed too: at a shared ratio of one half, the fork's match threshold of one half is never exceeded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plumage.routing import RoutingPolicy
from plumage_bench.baselines.routing import make_policy
from plumage_bench.ours import Ours
from plumage_engine.simulator.engine.device import GPU

__all__ = [
    "AGAIN", "BASELINES", "CACHE_AWARE", "DECAYS", "EVICTIONS", "MATRIX", "OURS", "QUICK_BASELINES", "Contender",
    "equal",
]  # fmt: skip

_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, eq=False)
class Contender:
    """A contender has a unique label. routing: the policy in words. policy: by its short name. `counts_characters`: the
    policy's tree is bounded in characters, so it must know the characters of a block. seeds_from: added to every seed,
    so that this contender gets other prompts and arrivals than the rest."""

    routing: str
    policy: str
    eviction: str = "Lru"
    options: Mapping[str, Any] = field(default_factory=dict)
    counts_characters: bool = False
    seeds_from: int = 0

    @property
    def label(self) -> str:
        return f"{self.routing} + {self.eviction}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contender) and other.label == self.label

    def __hash__(self) -> int:
        return hash(self.label)

    def over(self, eviction: str) -> Contender:
        """The same routing, with engines that evict by `eviction`."""
        return replace(self, eviction=eviction)

    def make(self, seed: int, block_size: int) -> RoutingPolicy:
        options = dict(self.options)
        if self.counts_characters:
            options["chunk_characters"] = block_size * _CHARACTERS_PER_TOKEN
        return make_policy(self.policy, rng=random.Random(f"policy-{seed}"), **options)


def _ours() -> Contender:
    """What the default manifest deploys: its policy, the options that it passes, and its eviction."""
    ours = Ours()
    policy, options = ours.routing()
    return Contender(policy, policy, ours.engine().eviction, options)


OURS = _ours()
AGAIN = replace(OURS, routing=f"{OURS.routing}, other seeds", seeds_from=500)
"""Plumage's policy on other seeds. Its ratio to itself is 1 but for chance, so the measured ratio shows the noise."""
EVICTIONS = ("Lru", OURS.eviction)
"""The eviction policies with which every contender runs."""

CACHE_AWARE = Contender("cache-aware", "SglangCacheAware", counts_characters=True)

# {cache-aware, LBGR} × {LRU, RLT, hotness}, as in KVRouting's Table 2 with hotness added.
MATRIX = tuple(one.over(eviction) for one in (CACHE_AWARE, OURS) for eviction in ("Lru", "Rlt", "Hotness"))

_AUTHORS_CODE = Contender("LBGR, the authors' code", "LbgrCode", counts_characters=True)
_LLMD = Contender("llm-d", "LlmD")
_LLMD_BLEND_PRECISE = Contender("llm-d, weighted, precise", "LlmDWeighted", options={"precise": True})

BASELINES = (
    CACHE_AWARE,
    Contender(
        "SGLang gateway (Python)", "SglangCacheAware", options={"preset": "gateway-python"}, counts_characters=True
    ),
    Contender("LBGR, our reconstruction of the printed form", "LbgrPaper"),
    _AUTHORS_CODE,
    Contender("PrefixAware", "PrefixAware"),
    _LLMD,
    # llm-d asks its users to measure this: the prompt tokens that a device computes a second. This is the modelled
    # device's.
    Contender("llm-d, calibrated", "LlmD", options={"peak_prefill": 1.0 / GPU.row}),
    Contender("llm-d, weighted", "LlmDWeighted"),
    _LLMD_BLEND_PRECISE,
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

# KVRouting's sweep of the interval at which W decays by 1/32. Plumage's W drains in real time without an interval.
DECAYS = tuple(
    Contender(
        f"{label}, {milliseconds} ms", policy, options={"decay_interval": milliseconds / 1000}, counts_characters=own
    )
    for label, policy, own in (("printed form", "LbgrPaper", False), ("authors' code", "LbgrCode", True))
    for milliseconds in (10, 20, 40, 80)
)

# A quick run searches the rates of these. In the full runs each is the best baseline on some device: the authors' code
# on GSP and conversations, llm-d on GSP, its precise blend on GSP, long documents and few-shot. Five others are the
# best somewhere, which only a full run shows: the SGLang gateway and cache-aware on conversations, production-stack by
# load on few-shot, Dynamo on GSP, PrefixAware on long documents.
QUICK_BASELINES = (_AUTHORS_CODE, _LLMD, _LLMD_BLEND_PRECISE)


def equal(contenders: Sequence[Contender]) -> list[Contender]:
    """Each of them with each eviction policy."""
    return [one.over(eviction) for eviction in EVICTIONS for one in contenders]
