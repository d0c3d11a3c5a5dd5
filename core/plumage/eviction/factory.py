"""Eviction policies by name. Belady is not among them: it is constructed with the future."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumage.errors import ConfigurationError
from plumage.eviction.classic import Fifo, Lfu, Ttl
from plumage.eviction.hotness import Hotness
from plumage.eviction.hotprefix import HotnessPaper
from plumage.eviction.interface import EvictionPolicy, Randomness
from plumage.eviction.lru import Lru
from plumage.eviction.rlt import Rlt
from plumage.eviction.rlt_code import RltCode
from plumage.eviction.twoq import TwoQ
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.record import NodeRecord

__all__ = ["POLICIES", "make_policy"]


def _hotness_paper(
    capacity: int,
    rng: Randomness,
    priority: str = "frequency + clock / length",
    block_tokens: int = 16,
    **widths: Any,
) -> EvictionPolicy:
    """Room for twice as many nodes as the cache has blocks, so that heat outlives eviction."""
    record = NodeRecord(CuckooFilter(2 * capacity, rng, **widths))
    return HotnessPaper(record, priority, block_tokens)


POLICIES: dict[str, Callable[..., EvictionPolicy]] = {
    "Lru": lambda capacity, rng: Lru(),
    "Rlt": Rlt,
    "RltCode": RltCode,
    "Hotness": lambda capacity, rng, **options: Hotness(capacity, **options),
    "HotnessPaper": _hotness_paper,
    "Lfu": lambda capacity, rng: Lfu(),
    "Fifo": lambda capacity, rng: Fifo(),
    "TwoQ": lambda capacity, rng, **options: TwoQ(capacity, **options),
    "Ttl": lambda capacity, rng, **options: Ttl(**options),
}


def make_policy(name: str, *, capacity: int, rng: Randomness, **options: Any) -> EvictionPolicy:
    """The policy called `name` for a cache of `capacity` blocks; ConfigurationError names the known ones and options.

    rng: seeded by the caller; Rlt and RltCode draw their victims with it, HotnessPaper the moves in its filter.
    """
    maker = POLICIES.get(name)
    if maker is None:
        raise ConfigurationError(f"no eviction policy named {name!r}; there are: {', '.join(POLICIES)}")
    try:
        return maker(capacity, rng, **options)
    except TypeError as error:
        raise ConfigurationError(f"eviction policy {name}: {error}") from error
