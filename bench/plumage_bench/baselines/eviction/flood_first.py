"""Eviction by hotness that knows which tenant's blocks nobody uses again: the least that a flood can cost others' hits
by what is evicted. What they still lose goes to the blocks of running requests, and to other replicas.
"""

from __future__ import annotations

from math import inf
from typing import Final

from plumage.blocks.run import Run
from plumage.eviction.hotness_formula import Hotness

__all__ = ["FLOOD", "FloodFirst"]

FLOOD: Final = "flood"
"""The salt of that tenant's requests."""


class FloodFirst(Hotness):
    """Not a policy for use: it is given what no cache can know."""

    def score(self, run: Run) -> float:
        return -inf if run.owner == FLOOD else super().score(run)
