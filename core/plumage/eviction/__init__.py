"""Eviction among the leaves of the prefix tree: LRU, RLT, hotness, and the policies they are compared with."""

from __future__ import annotations

from plumage.eviction.factory import make_policy, policy_options
from plumage.eviction.interface import EvictionPolicy, Randomness

__all__ = ["EvictionPolicy", "Randomness", "make_policy", "policy_options"]
