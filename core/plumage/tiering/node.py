"""A prefix node as the plans between memory tiers see it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TierNode"]


@dataclass(frozen=True, slots=True)
class TierNode:
    """key: hash of its last block. parent: hash of the block above its first one (None for a root). tokens: its own
    length. frequency: all uses so far. hotness: higher is hotter, by the formula of the plan that reads it."""

    key: int
    parent: int | None
    tokens: int
    frequency: int
    hotness: float
