"""The events of a block pool: the same three as vLLM's KV events, without their wire format.

A listener that counts copies per hash has the same counts as the pool. A further copy of a cached block is published as
stored again. Its eviction publishes a removal, though the hash may stay cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["CPU", "GPU", "BlockEvent", "Cleared", "EventSink", "Removed", "Stored"]

GPU = "GPU"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Stored:
    """`hashes`, a chain in order, became cached below `parent` (None: at the root)."""

    hashes: Sequence[int]
    parent: int | None
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class Removed:
    """One copy of each of `hashes` left the medium, children before parents."""

    hashes: Sequence[int]
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks left the device. For other tiers there are `Removed` events."""


BlockEvent = Stored | Removed | Cleared
EventSink = Callable[[BlockEvent], None]
