"""Hotness eviction, our default: a doubling of a run's frequency is worth some time of not being used.

    score = last use + weight · (log2(frequency) − ⅕ · log2(gap ÷ capacity))         lowest goes first

HotPrefix's `frequency + clock/length` (§3.3.1; `hotness_paper.py`) has one fixed weight of use against recency, and its
second term favours short runs, so that the private tail of a prompt outlives the shared prefix above it. No fixed
weight fits: production chat wants a large one in a small cache and none in a large cache, conversations want none,
few-shot suites a large one. Here

- time counts in blocks used, so that it runs as fast as the cache turns over;
- a run's last use is the *end* of the last request that used it, as in leaf-LRU: with weight 0 the two are one;
- `weight` is that of the shadow cache which finds most (`shadows.py`): 0, 1, 4, 8 or 16 caches of time;
- `gap` is the usual time between two uses, where that is more than a cache of time: of two runs used as often, the
  one whose uses lie closer together is back sooner. It counts in small caches, which lose most before its next use;
- frequency outlives eviction in a bounded memory, as HotPrefix asks (§3.3): else nothing that was evicted early
  could ever become hot; of small caches it holds more, as people take as long to answer whatever the cache. Nothing
  need be aged: recency is in the sum, so a run used 2^k times and never again goes k·weight later than one used once;
- where others share the load, as replicas of a pool do, each sees a part of the uses. `pooled` says how often all of
  them used a run; that counts where it is more than what was seen here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction.base import ScoredPolicy
from plumage.eviction.ghosts import Ghosts
from plumage.eviction.shadows import Shadows

__all__ = ["WEIGHTS", "Hotness"]

WEIGHTS = (1.0, 0.0, 4.0, 8.0, 16.0)
"""1 first: until a difference shows, a scan of fresh prompts does not wash out what was used again."""
_MOST = 255.0  # of a run's frequency; 65,535 changed no hit (0205)
_SLOWNESS = 0.2  # doublings of frequency that a doubling of the gap outweighs; ⅛ to ¼ measure alike
_LEAST_MEMORY = 32_768  # blocks


class _Past(NamedTuple):
    """Of a run that nobody uses, cached or evicted. gap: blocks of time, 0 while it was used in one go only. used: time
    of its last use. worth: in doublings of frequency."""

    frequency: float
    gap: float
    used: int
    worth: float


def _unknown(name: Any) -> float | None:
    return None


class Hotness(ScoredPolicy):
    """A run's `rank` is its frequency. pooled: by the hash of a run's first block, its uses anywhere, or None where
    nothing is known of it; asked once a run falls idle.

    capacity: blocks of the cache. weights: of the shadow caches, in cache sizes; one alone is fixed. memory: how far
    back it looks, in cache sizes: evicted blocks remembered (32,768 at least), and blocks used while a shadow's hit
    counts.
    """

    def __init__(self, capacity: int, weights: Sequence[float] = WEIGHTS, *, memory: float = 8.0) -> None:
        if not 0 < memory <= 64:
            raise ConfigurationError(f"hotness needs memory above 0 and up to 64 caches, got {memory}")
        super().__init__()
        self.pooled: Callable[[Any], float | None] = _unknown
        self._capacity = capacity
        self._shadows = Shadows(capacity, weights, memory)
        self._memory: Ghosts[_Past] = Ghosts(max(_LEAST_MEMORY, int(capacity * memory)))
        self._time = 0
        self._cached = 0
        self._idle: dict[Run, _Past] = {}
        self._gaps: dict[Run, float] = {}  # of runs in use that had been idle before

    @property
    def weight(self) -> float:
        """Cache sizes of time that a doubling of frequency is worth now."""
        return self._shadows.weight / self._capacity

    def score(self, run: Run) -> float:
        past = self._idle[run]
        return past.used + self._shadows.weight * past.worth

    def recall(self, hashes: Sequence[int]) -> Sequence[int]:
        return self._memory.cuts(hashes)

    def insert(self, run: Run, now: float) -> None:
        blocks = len(run.hashes)
        known = self._memory.get(run.hashes[0])
        if known is None:
            self._shadows.new(blocks)
            run.rank = 1.0
        else:
            self._again(run, known, blocks)
            run.fresh = False  # what its request adds below has another history, and becomes a run of its own
        self._cached += blocks
        self._time += blocks

    def access(self, run: Run, now: float) -> None:
        blocks = len(run.hashes)
        past = self._idle.pop(run, None)
        if past is None:  # some other request uses it too, and every shadow holds it
            run.rank = min(run.rank + 1.0, _MOST)
        else:
            self._again(run, past, blocks)
        self._time += blocks

    def _again(self, run: Run, past: _Past, blocks: int) -> None:
        """`run`, idle or evicted until now, is in use."""
        self._shadows.again(past.used, past.worth, blocks)
        run.rank = min(past.frequency + 1.0, _MOST)
        gap = float(self._time - past.used)
        self._gaps[run] = (past.gap + gap) / 2.0 if past.gap else gap

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._shadows.new(blocks)
        self._cached += blocks
        self._time += blocks

    def split(self, upper: Run, lower: Run) -> None:
        past = self._idle.get(lower)
        if past is not None:
            self._idle[upper] = past
        elif lower in self._gaps:
            self._gaps[upper] = self._gaps[lower]

    def idle(self, run: Run) -> None:
        gap = self._gaps.pop(run, 0.0)
        worth = math.log2(min(_MOST, max(run.rank, self.pooled(run.hashes[0]) or 0.0)))
        if gap > self._capacity:
            worth -= _SLOWNESS * math.log2(gap / self._capacity)
        self._idle[run] = _Past(run.rank, gap, self._time, worth)
        self._shadows.idle(self._time, worth, len(run.hashes), self._cached)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        self._cached -= len(evicted)
        self._memory.remember(evicted, self._idle[run])
        super().shrink(run, evicted)
        if not run.hashes:
            del self._idle[run]

    def victim(self, now: float) -> Run:
        if self._shadows.choose(self._time):
            self.rescore()
        return super().victim(now)

    def clear(self) -> None:
        super().clear()
        self._idle.clear()
        self._gaps.clear()
        self._memory.clear()
        self._shadows.reset()
        self._cached = 0
