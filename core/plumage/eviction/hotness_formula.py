"""Hotness eviction, the default: a run that is used twice as often may stay unused for some time longer.

    score = last use + weight · (log2(frequency) − ⅕ · log2(gap ÷ capacity))         lowest is evicted first

HotPrefix's `frequency + clock/length` (§3.3.1; `hotness_paper.py`) has a fixed ratio of frequency to recency. Its
second term favours short runs, so the private tail of a prompt stays longer than the shared prefix above it. No fixed
weight suits all loads. Production chat needs a large weight in a small cache and none in a large cache. Conversations
need none, and few-shot suites a large one. In this policy:

- Time is counted in blocks used, so it is proportional to the turnover of the cache.
- A run's last use is the *end* of the last request that used it, as in leaf-LRU. With weight 0 this policy is leaf-LRU.
- `weight` is taken from the simulated cache with the most hits (`shadows.py`): 0, 1, 4, 8 or 16 cache sizes of time.
- `gap` is the usual time between two uses, if that exceeds one cache size of time. Of two runs with equal frequency,
  the one with shorter gaps is used again sooner. This matters in small caches, which evict most runs before their next
  use.
- A bounded memory keeps the frequency of evicted runs, as HotPrefix requires (§3.3). Otherwise a run that is evicted
  early could never become hot. For small caches it keeps proportionally more, since the time until users reply does not
  depend on the cache. Ageing is not needed, because the score contains recency. A run that was used 2^k times is
  evicted only k·weight later than one that was used once.
- A tenant that uses few of its blocks again has those that were used once evicted earlier (`owners.py`).
- Each replica of a pool sees only a part of the uses. `pooled` returns how often all replicas used a run; it counts
  where it is more than this replica saw.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plumage.blocks.run import Name, Run
from plumage.errors import ConfigurationError
from plumage.eviction.ghosts import Ghosts
from plumage.eviction.leaf_heap import LeafHeap
from plumage.eviction.owners import Owners
from plumage.eviction.shadows import Shadows

__all__ = ["MEMORY", "WEIGHTS", "Hotness"]

WEIGHTS = (1.0, 0.0, 4.0, 8.0, 16.0)
"""1 is first: before hits show a difference, new prompts that are used once do not displace prefixes that were
reused."""
MEMORY = 8.0
"""Cache sizes of evicted blocks whose history is kept."""
_MOST = 255.0  # largest frequency of a run; 65,535 changed no hit (0205)
_SLOWNESS = 0.2  # doublings of frequency that offset a doubling of the gap; ⅛ to ¼ give equal results
_LEAST_MEMORY = 32_768  # blocks


class _Past(NamedTuple):
    """The history of a run that no request uses, cached or evicted. gap: blocks of time; 0 if there was only one period
    of use. used: time of its last use. worth: in doublings of frequency. since: its last use as the score counts it,
    earlier for tenants whose blocks seldom return."""

    frequency: float
    gap: float
    used: int
    worth: float
    since: float


def _unknown(name: Any) -> float | None:
    return None


class Hotness:
    """A run's `rank` is its frequency. It derives from no class, so that it can be compiled.

    pooled: returns the uses of a run by all replicas, by the hash of its first block, or None if unknown. It is called
        when a run becomes idle.
    capacity: blocks of the cache.
    weights: of the simulated caches, in cache sizes; a single one is fixed.
    memory: cache sizes of evicted blocks whose history is kept (at least 32,768 blocks). For as long, the hits of a
        simulated cache count.
    """

    def __init__(self, capacity: int, weights: Sequence[float] = WEIGHTS, *, memory: float = MEMORY) -> None:
        if not 0 < memory <= 64:
            raise ConfigurationError(f"hotness needs memory above 0 and up to 64 caches, got {memory}")
        self.at_once = sys.maxsize
        self.pooled: Callable[[Any], float | None] = _unknown
        self._capacity = capacity
        self._shadows = Shadows(capacity, weights, memory)
        self._owners = Owners(capacity, memory)
        self._leaves = LeafHeap()
        self._memory: Ghosts[_Past] = Ghosts(max(_LEAST_MEMORY, int(capacity * memory)))
        self._time = 0
        self._cached = 0
        self._idle: dict[Run, _Past] = {}
        self._gaps: dict[Run, float] = {}  # histories of runs that are in use and were idle before

    @property
    def weight(self) -> float:
        """The time, in cache sizes, that a doubling of frequency counts for now."""
        return self._shadows.weight / self._capacity

    @property
    def leaves(self) -> int:
        """The number of evictable leaves."""
        return len(self._leaves)

    def score(self, run: Run) -> float:
        past = self._idle[run]
        return past.since + self._shadows.weight * past.worth

    def recall(self, hashes: Sequence[Name]) -> Sequence[int]:
        return self._memory.cuts(hashes)

    def insert(self, run: Run, now: float) -> None:
        blocks = len(run.hashes)
        known = self._memory.get(run.hashes[0])
        if known is None:
            self._shadows.new(blocks)
            self._owners.computed(run.owner, blocks)
            run.rank = 1.0
        else:
            self._again(run, known, blocks)
            run.fresh = False  # blocks that the request adds below have another history, so they become another run
        self._cached += blocks
        self._time += blocks

    def access(self, run: Run, now: float) -> None:
        blocks = len(run.hashes)
        past = self._idle.pop(run, None)
        if past is None:  # another request uses it too, so every simulated cache has it
            if run.rank == 1.0:
                self._owners.again(run.owner, blocks)
            run.rank = min(run.rank + 1.0, _MOST)
        else:
            self._again(run, past, blocks)
        self._time += blocks

    def _again(self, run: Run, past: _Past, blocks: int) -> None:
        """`run`, which was idle or evicted until now, is in use."""
        self._shadows.again(past.since, past.worth, blocks)
        if past.frequency == 1.0:
            self._owners.again(run.owner, blocks)
        run.rank = min(past.frequency + 1.0, _MOST)
        gap = float(self._time - past.used)
        self._gaps[run] = (past.gap + gap) / 2.0 if past.gap else gap

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._shadows.new(blocks)
        self._owners.computed(run.owner, blocks)
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
        since = self._time - (self._owners.early(run.owner, self._time) if run.rank == 1.0 else 0.0)
        self._idle[run] = _Past(run.rank, gap, self._time, worth, since)
        self._shadows.idle(since, worth, len(run.hashes), self._cached)

    def release(self, run: Run) -> None:
        self._leaves.join(run, self.score(run))

    def hold(self, run: Run) -> None:
        self._leaves.leave(run)

    def shrink(self, run: Run, evicted: Sequence[Name]) -> None:
        self._cached -= len(evicted)
        self._memory.remember(evicted, self._idle[run])
        if not run.hashes:
            self._leaves.leave(run)
            del self._idle[run]

    def need(self, blocks: int) -> None:
        return

    def victim(self, now: float) -> Run:
        if self._shadows.choose(self._time):
            self._leaves.rescore(self.score)
        return self._leaves.first()

    def clear(self) -> None:
        self._leaves.clear()
        self._idle.clear()
        self._gaps.clear()
        self._memory.clear()
        self._shadows.reset()
        self._cached = 0
