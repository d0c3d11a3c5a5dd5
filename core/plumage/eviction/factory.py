"""Eviction policies by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plumage import defaults
from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.errors import ConfigurationError
from plumage.eviction.hotness_formula import MEMORY, WEIGHTS, Hotness
from plumage.eviction.hotness_paper import HotnessPaper
from plumage.eviction.lru import Lru
from plumage.eviction.rlt import Rlt
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.record import NodeRecord
from plumage.import_path import is_import_path, load_class, require_attribute
from plumage.options import check_options, option_names
from plumage.randomness import Randomness

__all__ = ["POLICY_NAMES", "make_policy", "policy_options"]


def _hotness(capacity: int, *, weights: Sequence[float] = WEIGHTS, memory: float = MEMORY) -> EvictionPolicy:
    """The constructor's own parameters: a compiled class does not show them."""
    return Hotness(capacity, weights, memory=memory)


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
    """The filter has room for twice as many nodes as the cache has blocks, so that hotness outlives eviction."""
    cuckoo = CuckooFilter(
        2 * capacity, rng, aging_interval=aging_interval, fingerprint_bits=fingerprint_bits,
        clock_bits=clock_bits, frequency_bits=frequency_bits, depth_bits=depth_bits,
    )  # fmt: skip
    return HotnessPaper(NodeRecord(cuckoo), priority, block_tokens)


# Each with the arguments that it needs besides its options: the cache's capacity in blocks, the randomness or both.
_MAKERS: dict[str, tuple[Callable[..., EvictionPolicy], tuple[str, ...]]] = {
    "Lru": (Lru, ()),
    "Rlt": (Rlt, ("capacity", "rng")),
    "Hotness": (_hotness, ("capacity",)),
    "HotnessPaper": (_hotness_paper, ("capacity", "rng")),
}
_METHODS = (
    "recall", "insert", "access", "grow", "split", "idle", "release", "hold", "shrink", "need", "victim", "clear",
)  # fmt: skip

POLICY_NAMES = tuple(_MAKERS)
"""The policies that Plumage includes."""


def make_policy(name: str, *, capacity: int, rng: Randomness, **options: Any) -> EvictionPolicy:
    """The policy `name` for a cache of `capacity` blocks. ConfigurationError names the known policies and options.

    name: one of `POLICY_NAMES`, or "package.module:Class" for a policy of your own. rng: seeded by the caller; Rlt
    draws victims with it, HotnessPaper the moves in its filter. A class of your own gets `capacity` and `rng` if its
    constructor has parameters of these names.
    """
    maker, needs = _find(name)
    given = {key: value for key, value in (("capacity", capacity), ("rng", rng)) if key in needs}
    what = f"eviction policy {name}"
    check_options(what, maker, options, given)
    policy = maker(**given, **options)
    require_attribute(policy, what, "at_once", int)
    return policy


def policy_options(name: str) -> list[str]:
    """The names of the options that `make_policy` accepts for this policy; none for an unknown policy."""
    if name not in _MAKERS and not is_import_path(name):
        return []
    maker, needs = _find(name)
    return option_names(maker, needs)


def _find(name: str) -> tuple[Callable[..., EvictionPolicy], tuple[str, ...]]:
    if is_import_path(name):
        own = load_class(name, "eviction policy", _METHODS)
        return own, tuple(needed for needed in ("capacity", "rng") if needed in option_names(own))
    if name not in _MAKERS:
        known = ", ".join(_MAKERS)
        raise ConfigurationError(f"no eviction policy named {name!r}; there are: {known}, and package.module:Class")
    return _MAKERS[name]
