"""The block pool of one engine: cached prefixes as a tree of runs, copies, and the events about them."""

from __future__ import annotations

from plumage.blocks.events import BlockEvent, Cleared, Removed, Stored
from plumage.blocks.run import Run

__all__ = ["BlockEvent", "Cleared", "Removed", "Run", "Stored"]
