"""The block pool of one engine: a tree of runs for cached prefixes, further copies of blocks, and the events about
them."""

from __future__ import annotations

from plumage.blocks.events import BlockEvent, Cleared, Removed, Stored
from plumage.blocks.run import Run

__all__ = ["BlockEvent", "Cleared", "Removed", "Run", "Stored"]
