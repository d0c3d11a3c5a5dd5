"""Eviction policies for the leaves of the prefix tree: LRU, RLT, and hotness in two forms."""

from __future__ import annotations

from plumage.eviction.factory import POLICY_NAMES, make_policy, policy_options
from plumage.eviction.interface import EvictionPolicy, Randomness

__all__ = ["POLICY_NAMES", "EvictionPolicy", "Randomness", "make_policy", "policy_options"]
