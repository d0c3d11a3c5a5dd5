"""SIEVE among leaves.

Source: Zhang et al., SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches, NSDI 2024,
algorithm 1.

Runs stand in the order in which they were cached. A use only sets a bit. A hand moves from the oldest run to the newest
and begins again: it clears the bits that it passes, and stops at the first leaf without one. Runs that are in use or
have children are passed over with their bits. A part that is cut off a run counts as new in the order.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import StateError
from plumage.eviction.base import QuietPolicy
from plumage.eviction.leaf_heap import NO_VICTIM

__all__ = ["Sieve"]

_USED, _UNUSED = 1.0, 0.0


class Sieve(QuietPolicy):
    """`rank` is the bit. The hand stands before the first run of `_ahead`; those of `_passed` are all older."""

    def __init__(self) -> None:
        self._ahead: dict[Run, None] = {}
        self._passed: dict[Run, None] = {}
        self._leaves: set[Run] = set()  # evictable ones

    def insert(self, run: Run, now: float) -> None:
        run.rank = _UNUSED
        self._enter(run)

    def access(self, run: Run, now: float) -> None:
        run.rank = _USED

    def split(self, upper: Run, lower: Run) -> None:
        self._enter(upper)

    def release(self, run: Run) -> None:
        self._leaves.add(run)

    def hold(self, run: Run) -> None:
        self._leaves.discard(run)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if not run.hashes:
            self._leaves.discard(run)
            self._ahead.pop(run, None)
            self._passed.pop(run, None)

    def victim(self, now: float) -> Run:
        if not self._leaves:
            raise StateError(NO_VICTIM)
        while True:
            self._turn()
            run = next(iter(self._ahead))
            if run in self._leaves:
                if run.rank == _UNUSED:
                    return run
                run.rank = _UNUSED
            del self._ahead[run]
            self._passed[run] = None

    def _enter(self, run: Run) -> None:
        self._turn()  # a hand at the end begins again at the oldest run, not at this one
        self._ahead[run] = None

    def _turn(self) -> None:
        if not self._ahead:
            self._ahead, self._passed = self._passed, self._ahead

    def clear(self) -> None:
        self._ahead.clear()
        self._passed.clear()
        self._leaves.clear()
