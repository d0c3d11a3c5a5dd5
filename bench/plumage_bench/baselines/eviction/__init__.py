"""Textbook caches, RLT as its authors' code runs it, and leaf-OPT, by their short names.

Leaf-OPT (`belady`) has no name: it is constructed with the future."""

from __future__ import annotations

from typing import Any, Final

from plumage import eviction
from plumage.eviction import EvictionPolicy, Randomness

__all__ = ["BASELINE_NAMES", "POLICY_NAMES", "make_policy", "path"]

_HERE: Final = __name__
_PATHS: Final = {
    "RltCode": f"{_HERE}.rlt_code:RltCode",
    "Lfu": f"{_HERE}.classic:Lfu",
    "Fifo": f"{_HERE}.classic:Fifo",
    "TwoQ": f"{_HERE}.twoq:TwoQ",
    "Ttl": f"{_HERE}.classic:Ttl",
}
BASELINE_NAMES: Final = tuple(_PATHS)
POLICY_NAMES: Final = (*eviction.POLICY_NAMES, *_PATHS)
"""The product's and the baselines'."""


def path(name: str) -> str:
    """What settings say for the policy called `name`: the product's names as they are, a baseline's import path."""
    return _PATHS.get(name, name)


def make_policy(name: str, *, capacity: int, rng: Randomness, **options: Any) -> EvictionPolicy:
    """The policy called `name`, of the product or a baseline, made by the product's own function."""
    return eviction.make_policy(path(name), capacity=capacity, rng=rng, **options)
