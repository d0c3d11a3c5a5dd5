"""Textbook policies: LFU, FIFO, TTL. Each evicts only leaves, as Plumage's policies do.

Runs are scored when they become evictable. The inputs of these scores do not change while a run is an idle leaf.

Sources: FIFO and LFU are of the paging literature (Belady, A Study of Replacement Algorithms for a Virtual-Storage
Computer, IBM Systems Journal 5(2), 1966; Coffman and Denning, Operating Systems Theory, 1973). TTL is a timeout as in
web caches; the use of FIFO while no leaf has expired is an addition.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction.base import QuietPolicy, ScoredPolicy
from plumage.eviction.lru import Lru

__all__ = ["Fifo", "Lfu", "Ttl"]


class Lfu(ScoredPolicy):
    """The leaf with the fewest uses since it was cached; of equal ones the leaf that has been idle longest."""

    def score(self, run: Run) -> float:
        return run.uses


class Fifo(ScoredPolicy):
    """The leaf that was cached first."""

    def score(self, run: Run) -> float:
        return run.inserted


class Ttl(QuietPolicy):
    """Leaves that were not used for `ttl` seconds, longest idle first. If there are none, the leaf that was cached
    first."""

    def __init__(self, ttl: float = 60.0) -> None:
        if not ttl > 0:
            raise ConfigurationError(f"ttl must be a positive number of seconds, got {ttl!r}")
        self._ttl = ttl
        self._by_use = Lru()
        self._by_insertion = Fifo()

    def access(self, run: Run, now: float) -> None:
        self._by_use.access(run, now)

    def idle(self, run: Run) -> None:
        self._by_use.idle(run)

    def release(self, run: Run) -> None:
        self._by_insertion.release(run)

    def hold(self, run: Run) -> None:
        self._by_insertion.hold(run)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        self._by_use.shrink(run, evicted)
        self._by_insertion.shrink(run, evicted)

    def victim(self, now: float) -> Run:
        oldest = self._by_use.victim(now)
        return oldest if oldest.used + self._ttl <= now else self._by_insertion.victim(now)

    def clear(self) -> None:
        self._by_use.clear()
        self._by_insertion.clear()
