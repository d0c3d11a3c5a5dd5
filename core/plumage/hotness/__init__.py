"""How hot prefixes are: one engine's cuckoo filter, users' formulas over it, and the pool-wide view."""

from __future__ import annotations

from plumage.hotness.heat import Heat, HeatSource, Layered

__all__ = ["Heat", "HeatSource", "Layered"]
