"""Eviction policies by name. Belady is not among them: it is constructed with the future."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumage import defaults
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
from plumage.options import check_options, option_names

__all__ = ["make_policy", "policy_options"]


def _hotness_paper(
    capacity: int,
    rng: Randomness,
    *,
    priority: str = defaults.PAPER_PRIORITY,
    block_tokens: int = defaults.BLOCK_SIZE,
    aging_interval: int = defaults.AGING_INTERVAL,
    fingerprint_bits: int = defaults.FILTER_BITS,
    clock_bits: int = defaults.FILTER_BITS,
    frequency_bits: int = defaults.FREQUENCY_BITS,
    depth_bits: int = defaults.FILTER_BITS,
) -> EvictionPolicy:
    """Room for twice as many nodes as the cache has blocks, so that heat outlives eviction."""
    cuckoo = CuckooFilter(
        2 * capacity, rng, aging_interval=aging_interval, fingerprint_bits=fingerprint_bits,
        clock_bits=clock_bits, frequency_bits=frequency_bits, depth_bits=depth_bits,
    )  # fmt: skip
    return HotnessPaper(NodeRecord(cuckoo), priority, block_tokens)


# Each with what it is made from beside its options: of the cache's capacity in blocks and the randomness.
_MAKERS: dict[str, tuple[Callable[..., EvictionPolicy], tuple[str, ...]]] = {
    "Lru": (Lru, ()),
    "Rlt": (Rlt, ("capacity", "rng")),
    "RltCode": (RltCode, ("capacity", "rng")),
    "Hotness": (Hotness, ("capacity",)),
    "HotnessPaper": (_hotness_paper, ("capacity", "rng")),
    "Lfu": (Lfu, ()),
    "Fifo": (Fifo, ()),
    "TwoQ": (TwoQ, ("capacity",)),
    "Ttl": (Ttl, ()),
}


def make_policy(name: str, *, capacity: int, rng: Randomness, **options: Any) -> EvictionPolicy:
    """The policy called `name` for a cache of `capacity` blocks; ConfigurationError names the known ones and options.

    rng: seeded by the caller; Rlt and RltCode draw their victims with it, HotnessPaper the moves in its filter.
    """
    if name not in _MAKERS:
        raise ConfigurationError(f"no eviction policy named {name!r}; there are: {', '.join(_MAKERS)}")
    maker, needs = _MAKERS[name]
    given = {key: value for key, value in (("capacity", capacity), ("rng", rng)) if key in needs}
    check_options(f"eviction policy {name}", maker, options, given)
    return maker(**given, **options)


def policy_options(name: str) -> list[str]:
    """The names of `make_policy`'s options for it; of a policy that there isn't, none."""
    if name not in _MAKERS:
        return []
    maker, needs = _MAKERS[name]
    return option_names(maker, needs)
