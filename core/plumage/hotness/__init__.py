"""How hot prefixes are: one engine's cuckoo filter, users' formulas over it, and the pool-wide view."""

from __future__ import annotations

from plumage.hotness.node_uses import Layered, NodeUses, UsesSource

__all__ = ["Layered", "NodeUses", "UsesSource"]
