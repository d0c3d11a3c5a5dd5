"""Simulated caches of the same size with other weights of frequency, which count hits without storing blocks.

The score is `last use + weight · worth`, where worth grows with frequency. Nearly every use raises a score, and the
lowest scores are evicted first. So a cache contains exactly the blocks whose score is not below its *floor*, the score
up to which it has evicted blocks. The inputs of worth outlive eviction, so a block has the same score in every cache.
To detect hits a simulated cache needs only its floor. To raise the floor it needs the number of blocks per bucket of
scores.

The policy counts the hits of each simulated cache and uses the best of a few fixed weights. (LeCaR and Cacheus choose
between experts by regret on evicted blocks; here each weight is simulated.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from plumage.errors import ConfigurationError

__all__ = ["Shadow", "Shadows"]

_BUCKETS = 32  # buckets for one cache size of time; 8 to 256 give equal results
_CHOICES = 16  # a cache of time


class Shadow:
    """A simulated cache with one weight. weight: blocks of time that a unit of worth adds. bucket: width of a bucket of
    scores. Blocks in use are in `size` but in no bucket."""

    __slots__ = ("_bucket", "_counts", "_floor", "_order", "size", "weight")

    def __init__(self, weight: float, bucket: float) -> None:
        self.weight = weight
        self._bucket = bucket
        self.reset()

    def reset(self) -> None:
        """The cache is empty."""
        self.size = 0
        self._floor = -math.inf
        self._counts: dict[float, int] = {}
        self._order: list[float] = []

    def take(self, used: float, worth: float, blocks: int) -> bool:
        """Blocks of this `worth`, last used at `used`, come into use. Returns whether this cache had them."""
        score = used + self.weight * worth
        if score < self._floor:
            self.size += blocks
            return False
        counts, bucket = self._counts, score // self._bucket
        left = counts.get(bucket, 0) - blocks
        counts[bucket] = left if left > 0 else 0
        return True

    def put(self, used: float, worth: float, blocks: int) -> None:
        """Blocks are no longer in use. Those below the floor are dropped at once."""
        score = used + self.weight * worth
        if score < self._floor:
            self.size -= blocks
            return
        counts, bucket = self._counts, score // self._bucket
        known = counts.get(bucket)
        if known is None:
            heapq.heappush(self._order, bucket)
            known = 0
        counts[bucket] = known + blocks

    def trim(self, room: int) -> None:
        """Drop the lowest scores until `room` blocks are left, or only those in use."""
        counts, order, width = self._counts, self._order, self._bucket
        while self.size > room and order:
            lowest = order[0]
            count, over = counts[lowest], self.size - room
            bottom, top = max(self._floor, lowest * width), (lowest + 1) * width
            if count > over:  # part of a bucket, as if its scores were evenly distributed
                counts[lowest] = count - over
                self._floor = bottom + (top - bottom) * over / count
                self.size = room
                return
            heapq.heappop(order)
            del counts[lowest]
            self._floor = top
            self.size -= count


class Shadows:
    """One simulated cache for each weight. `weight` is that of the cache with the most recent hits.

    capacity: blocks of the cache. weights: what a unit of worth adds, in cache sizes of blocks used; the first one
    applies until another has more hits. window: cache sizes of blocks used after which a hit counts 1/e.
    """

    def __init__(self, capacity: int, weights: Sequence[float], window: float) -> None:
        if not weights or not all(0 <= weight < math.inf for weight in weights):
            raise ConfigurationError(f"hotness needs weights, one or more, each 0 or above; got {weights!r}")
        self._shadows = [Shadow(weight * capacity, max(1.0, capacity / _BUCKETS)) for weight in weights]
        self._found = [0.0] * len(weights)
        self._window = window * capacity
        self._every = max(1, capacity // _CHOICES)
        self._chosen = 0
        self._at = 0
        self.weight = self._shadows[0].weight

    def again(self, used: float, worth: float, blocks: int) -> None:
        """Blocks that were last used at `used` and are idle come into use again, cached or not."""
        found = self._found
        for index, shadow in enumerate(self._shadows):
            if shadow.take(used, worth, blocks):
                found[index] += blocks

    def new(self, blocks: int) -> None:
        """Blocks without a known history are cached, in use."""
        for shadow in self._shadows:
            shadow.size += blocks

    def idle(self, used: float, worth: float, blocks: int, room: int) -> None:
        """Blocks are no longer in use. room: blocks that the real cache has now, which also bounds the simulated
        ones."""
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
        """The cache was emptied. The counts of hits stay."""
        for shadow in self._shadows:
            shadow.reset()
