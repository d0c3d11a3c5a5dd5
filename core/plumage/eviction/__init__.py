"""Eviction policies for the leaves of the prefix tree: LRU, RLT, and hotness in two forms."""

from __future__ import annotations

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.eviction.factory import POLICY_NAMES, make_policy, policy_options

__all__ = ["POLICY_NAMES", "EvictionPolicy", "make_policy", "policy_options"]
