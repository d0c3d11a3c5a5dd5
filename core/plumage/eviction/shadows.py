"""Simulated caches of the same size with other weights of frequency, which count hits without storing blocks.

The score is `last use + weight · worth`, where worth grows with frequency. The inputs of worth outlive eviction, so a
block has the same score in every cache. A simulated cache needs only the number of its blocks by score: the lowest go
first. Scores are exact. With scores rounded to a 32nd of the cache, blocks counted as cached after a part of their
score was evicted. On conversations that just do not fit, LRU then seemed five times as good as it was (0315).

The policy counts the hits of each simulated cache and uses the best of a few fixed weights. (LeCaR and Cacheus choose
between experts by regret on evicted blocks; here each weight is simulated.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from plumage.errors import ConfigurationError

__all__ = ["Shadow", "Shadows"]

_CHOICES = 16  # a cache of time
_STALE = 1024  # scores without blocks that may be in the order beside as many as have some


class Shadow:
    """A simulated cache with one weight. weight: blocks of time that a unit of worth adds. Blocks in use are in `size`
    but have no score. `size` is less by the blocks of `Shadows.new`, which count for all simulated caches. So it may be
    negative."""

    __slots__ = ("_counts", "_order", "_stale", "size", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.reset()

    def reset(self) -> None:
        """Empties the simulated cache."""
        self.size = 0
        self._counts: dict[float, int] = {}
        self._order: list[float] = []
        self._stale = 0

    def take(self, used: float, worth: float, blocks: int) -> int:
        """Blocks of this `worth`, last used at `used`, come into use. Returns how many of them this cache had.

        Of blocks with one score the last ones of a chain went first, and the first ones are asked for first."""
        score, counts = used + self.weight * worth, self._counts
        held = counts.get(score, 0)
        if held > blocks:
            counts[score] = held - blocks
            return blocks
        if held:
            del counts[score]
            self._stale += 1
            if self._stale > len(counts) + _STALE:
                self._order, self._stale = list(counts), 0
                heapq.heapify(self._order)
        self.size += blocks - held
        return held

    def put(self, used: float, worth: float, blocks: int) -> None:
        """Blocks are no longer in use."""
        score, counts = used + self.weight * worth, self._counts
        held = counts.get(score)
        if held is None:
            heapq.heappush(self._order, score)
            held = 0
        counts[score] = held + blocks

    def trim(self, room: int) -> None:
        """Drop the lowest scores until `size` is `room`, or only blocks in use are left."""
        counts, order = self._counts, self._order
        while self.size > room and order:
            count, over = counts.get(order[0]), self.size - room
            if count is not None and count > over:
                counts[order[0]] = count - over
                self.size = room
                return
            lowest = heapq.heappop(order)
            if count is None:
                self._stale -= 1
            else:
                del counts[lowest]
                self.size -= count


class Shadows:
    """One simulated cache for each weight. `weight` is that of the cache with the most recent hits.

    capacity: blocks of the cache. weights: what a unit of worth adds, in cache sizes of blocks used; the first one
    applies until another has more hits. window: cache sizes of blocks used after which a hit counts 1/e.
    """

    def __init__(self, capacity: int, weights: Sequence[float], window: float) -> None:
        if not weights or not all(0 <= weight < math.inf for weight in weights):
            raise ConfigurationError(f"hotness needs weights, one or more, each 0 or above; got {weights!r}")
        self._shadows = [Shadow(weight * capacity) for weight in weights]
        self._found = [0.0] * len(weights)
        self._window = window * capacity
        self._every = max(1, capacity // _CHOICES)
        self._chosen = 0
        self._at = 0
        self._new = 0
        self.weight = self._shadows[0].weight

    def again(self, used: float, worth: float, blocks: int) -> None:
        """Blocks that were last used at `used` and are idle come into use again, cached or not."""
        found = self._found
        for index, shadow in enumerate(self._shadows):
            found[index] += shadow.take(used, worth, blocks)

    def new(self, blocks: int) -> None:
        """Blocks without a known history are cached, in use."""
        self._new += blocks

    def idle(self, used: float, worth: float, blocks: int, room: int) -> None:
        """Blocks are no longer in use. room: blocks that the real cache has now, which also bounds the simulated
        ones."""
        room -= self._new
        for shadow in self._shadows:
            shadow.put(used, worth, blocks)
            if shadow.size > room:
                shadow.trim(room)

    def choose(self, time: int) -> bool:
        """Once per interval, switch to the weight with the most hits. Returns whether the weight changed."""
        elapsed = time - self._at
        if elapsed < self._every:
            return False
        self._at = time
        before, found = self._chosen, self._found
        best = max(range(len(found)), key=found.__getitem__)
        if found[best] > found[before]:
            self._chosen = best
            self.weight = self._shadows[best].weight
        faded = math.exp(-elapsed / self._window)
        self._found = [hits * faded for hits in found]
        return self._chosen != before

    def reset(self) -> None:
        """Empties the simulated caches. The counts of hits stay."""
        self._new = 0
        for shadow in self._shadows:
            shadow.reset()
