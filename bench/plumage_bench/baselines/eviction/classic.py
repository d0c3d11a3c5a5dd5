"""The textbook policies to compare with: LFU, FIFO, TTL; each among the leaves, like all of ours.

Runs are scored when they become evictable; nothing that enters these scores changes while a run is an idle leaf.

Sources: FIFO and LFU are of the paging literature (Belady, A Study of Replacement Algorithms for a Virtual-Storage
Computer, IBM Systems Journal 5(2), 1966; Coffman and Denning, Operating Systems Theory, 1973). TTL is a timeout as web
caches have it; that FIFO decides while nothing has expired is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction.base import QuietPolicy, ScoredPolicy
from plumage.eviction.lru import Lru

__all__ = ["Fifo", "Lfu", "Ttl"]


class Lfu(ScoredPolicy):
    """The leaf with the fewest uses since it was cached; of equals, the one idle longest."""

    def score(self, run: Run) -> float:
        return run.uses


class Fifo(ScoredPolicy):
    """The leaf cached first."""

    def score(self, run: Run) -> float:
        return run.inserted


class Ttl(QuietPolicy):
    """Leaves not used for `ttl` seconds, idle longest first; while there are none, the one cached first."""

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
