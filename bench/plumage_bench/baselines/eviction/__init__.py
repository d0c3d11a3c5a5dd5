"""Textbook caches, the rules of two plugins of vLLM, RLT as in its authors' code, and leaf-OPT, by their short names.

Leaf-OPT (`belady`) has no name, since its constructor needs the future requests.
"""

from __future__ import annotations

from typing import Any, Final

from plumage import eviction
from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.randomness import Randomness
from plumage_bench.baselines.named import NamedBaselines

__all__ = ["POLICY_NAMES", "make_policy", "path"]

_BASELINES: Final = NamedBaselines(
    __name__,
    {
        "RltCode": "rlt_code:RltCode",
        "Lfu": "classic:Lfu",
        "Fifo": "classic:Fifo",
        "TwoQ": "twoq:TwoQ",
        "Ttl": "classic:Ttl",
        "Arc": "arc:Arc",
        "S3Fifo": "s3fifo:S3Fifo",
        "Sieve": "sieve:Sieve",
        "MarconiOffload": "offload_plugins:MarconiOffload",
        "Evoke": "offload_plugins:Evoke",
        "FloodFirst": "flood_first:FloodFirst",
    },
)
POLICY_NAMES: Final = (*eviction.POLICY_NAMES, *_BASELINES.names)
"""Names of the product's policies and the baselines."""
path: Final = _BASELINES.path


def make_policy(name: str, *, capacity: int, rng: Randomness, **options: Any) -> EvictionPolicy:
    """The policy `name` of the product or of a baseline, made by the product's own function."""
    return eviction.make_policy(path(name), capacity=capacity, rng=rng, **options)
