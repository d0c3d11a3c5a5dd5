"""Leaf-LRU: the evictable leaf whose last request ended longest ago (vLLM's and SGLang's default).

A request that uses a run also uses its ancestors, and `idle` is called for descendants first. So in the order in which
runs become idle a child is always before its parent, and the first idle run is a leaf. No heap is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import StateError
from plumage.eviction.base import QuietPolicy
from plumage.eviction.leaf_heap import NO_VICTIM

__all__ = ["Lru"]


class Lru(QuietPolicy):
    """Idle runs in the order in which they became idle."""

    def __init__(self) -> None:
        self._idle: dict[Run, None] = {}

    def access(self, run: Run, now: float) -> None:
        self._idle.pop(run, None)

    def idle(self, run: Run) -> None:
        self._idle.pop(run, None)
        self._idle[run] = None

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if not run.hashes:
            del self._idle[run]

    def victim(self, now: float) -> Run:
        for run in self._idle:
            if not run.busy and not run.children:  # otherwise no request used it, or a run below it is in use
                return run
        raise StateError(NO_VICTIM)

    def clear(self) -> None:
        self._idle.clear()
