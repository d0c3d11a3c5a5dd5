"""Hotness eviction, our default: a doubling of a run's frequency is worth some reuse intervals of recency.

    score = last use + weight · horizon · log2(frequency)         lowest goes first

HotPrefix's `frequency + clock/length` (002 §3.3.1; `hotprefix.py`) has one fixed weight of use against recency, and its
second term favours short runs, so that the private tail of a prompt outlives the shared prefix above it. No fixed
weight fits: production chat wants a large one in a small cache and a small one in a large cache, conversations want
nearly none, few-shot suites a large one. Here

- time counts in blocks used, so that it runs as fast as the cache turns over;
- `horizon` is the median interval between two uses of a block (`reuse.py`), so that the weight is a pure number;
- `weight` is learned while the policy runs (`balance.py`);
- frequency outlives eviction in a bounded memory, as HotPrefix asks (002 §3.3): else nothing that was evicted early
  could ever become hot. Nothing need be aged: recency is in the sum, so a run used 2^k times and never again goes
  k·weight horizons later than one used once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction.balance import Balance, BalanceSettings
from plumage.eviction.base import ScoredPolicy
from plumage.eviction.ghosts import Ghosts
from plumage.eviction.reuse import ReuseInterval

__all__ = ["Hotness"]

_MOST = 255.0  # a frequency of eight bits, as in HotPrefix's filter
_STALE = 1.25  # leaves are scored again once the weight has moved this far


class _Memory(NamedTuple):
    """Of an evicted block: its frequency, and the time of its last use."""

    frequency: float
    used: int


class Hotness(ScoredPolicy):
    """capacity: blocks of the cache. memory: evicted blocks remembered, in caches. A run's `rank` is its frequency."""

    def __init__(self, capacity: int, settings: BalanceSettings | None = None, *, memory: float = 8.0) -> None:
        if not 0 < memory <= 64:
            raise ConfigurationError(f"hotness needs memory above 0 and up to 64 caches, got {memory}")
        super().__init__()
        self._balance = Balance(capacity, settings or BalanceSettings())
        self._reuse = ReuseInterval(float(capacity))
        self._memory: Ghosts[_Memory] = Ghosts(int(capacity * memory))
        self._time = 0
        self._used: dict[Run, int] = {}
        self._scored_with = self._balance.weight

    @property
    def weight(self) -> float:
        """Horizons that a doubling of frequency is worth, as learned by now."""
        return self._balance.weight

    @property
    def horizon(self) -> float:
        """Median interval between two uses of a block, in blocks used."""
        return self._reuse.median

    def score(self, run: Run) -> float:
        return self._score(run.rank, self._used[run])

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        return self._memory.cuts(hashes)

    def insert(self, run: Run, now: float) -> None:
        known = self._memory.get(run.hashes[0])
        if known is None:
            run.rank = 1.0
        else:
            self._vote(known.frequency, known.used, len(run.hashes))
            run.rank = min(known.frequency + 1.0, _MOST)
            run.fresh = False  # what its request adds below has another history, and becomes a run of its own
        self._use(run, run.hashes)

    def access(self, run: Run, now: float) -> None:
        self._vote(run.rank, self._used[run], len(run.hashes))
        run.rank = min(run.rank + 1.0, _MOST)
        self._use(run, run.hashes)

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._use(run, run.hashes[len(run.hashes) - blocks :])

    def split(self, upper: Run, lower: Run) -> None:
        self._used[upper] = self._used[lower]

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        self._balance.evicted(self.score(run), math.log2(run.rank), len(evicted))
        self._memory.remember(evicted, _Memory(run.rank, self._used[run]))
        super().shrink(run, evicted)
        if not run.hashes:
            del self._used[run]

    def victim(self, now: float) -> Run:
        if not 1 / _STALE < self._balance.weight / self._scored_with < _STALE:
            self._scored_with = self._balance.weight
            self.rescore()
        return super().victim(now)

    def clear(self) -> None:
        super().clear()
        self._used.clear()
        self._memory.clear()
        self._balance.reset()

    def _score(self, frequency: float, used: int) -> float:
        return used + self._balance.weight * self._reuse.median * math.log2(frequency)

    def _vote(self, frequency: float, used: int, blocks: int) -> None:
        self._balance.vote(self._score(frequency, used), math.log2(frequency), blocks)

    def _use(self, run: Run, hashes: Sequence[int]) -> None:
        self._time += len(hashes)
        self._used[run] = self._time
        self._reuse.use(hashes, self._time)
