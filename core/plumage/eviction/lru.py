"""Leaf-LRU: the evictable leaf whose last request ended longest ago (vLLM's and SGLang's default).

Every request that uses a run uses its ancestors too, and `idle` comes from the leaf upwards; so in the order of
becoming idle a child always stands before its parent, and the first idle run is always a leaf. No heap is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import StateError
from plumage.eviction.base import NO_VICTIM, QuietPolicy

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
            if not run.busy and not run.children:  # else it is kept for no request, or something below it is
                return run
        raise StateError(NO_VICTIM)

    def clear(self) -> None:
        self._idle.clear()
