"""Miss-ratio curves from a sample of the keys, in constant memory: SHARDS (Waldspurger et al., FAST '15), for long use.

A key is sampled if its hash is below a threshold, so all accesses to a key are seen or none is: the distances among
sampled keys are the real ones, shrunk by the rate. As in SHARDS of fixed size (§3.3) the threshold falls as keys come,
so that at most `samples` keys are held.

Three changes, because a pool runs for months and SHARDS was made for a trace:
- Accesses that the sample has too many or too few of are taken from the distances at which chance most likely put them
  (`distances`), not all from the smallest one as in SHARDS-adj (§3.2).
- Distances above `largest`, the largest cache of interest, are counted as one. So the rate never falls below
  samples ÷ largest: at that rate the least recently used key is dropped, whatever its hash. (SHARDS lowers its rate
  with every new key, until it samples nothing.)
- `age` lets old accesses fade, so that the curve is of the load as it is now.

An access costs a multiplication and a comparison, a sampled one about 2 µs more: the distance is a binary search in the
sorted times of last access.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf

from plumage.errors import ConfigurationError
from plumage.mrc.curve import MissRatioCurve
from plumage.mrc.distances import DistanceHistogram

__all__ = ["ReuseSampler"]

_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15
_FULL = 1 << 64
_LOWER = 0.875
"""An eighth of the sample goes at a time, for one pass over it."""
_COUNTS = (1 << 16) - 1
"""Counts of a key's accesses end here. Times have 47 bits left."""


class ReuseSampler:
    """samples: keys held at most; 4,096 tell a hit ratio to within 1 % and take 0.7 MB. largest: the largest cache, in
    keys (blocks), that the curve is to cover."""

    def __init__(self, samples: int = 4096, largest: int = 1 << 24) -> None:
        if samples < 16 or largest < 16:
            raise ConfigurationError(f"samples and largest must be at least 16, got {samples} and {largest}")
        self.samples = samples
        self.largest = largest
        self.accesses = 0.0
        self._threshold = _FULL
        self._lowest = min(_FULL, int(_FULL * samples * _LOWER / largest))
        self._weight = 1.0  # accesses that one sampled access stands for
        self._times = array("q")  # of last access, ascending; the low bits count the key's accesses
        self._last: dict[int, int] = {}  # key -> its entry there, oldest first
        self._clock = 0
        self._distances = DistanceHistogram(largest)

    def __len__(self) -> int:
        """Keys held."""
        return len(self._last)

    @property
    def rate(self) -> float:
        """The share of keys that is sampled."""
        return self._threshold / _FULL

    def access(self, key: int) -> None:
        """One block was asked for. `key`: its hash, or any number that is its own."""
        self.accesses += 1.0
        if (key * _MIX & _MASK) < self._threshold:
            self._sampled(key)

    def access_all(self, keys: Sequence[int]) -> None:
        """Blocks in the order in which they were asked for: a prompt's chain from its root."""
        self.accesses += len(keys)
        threshold = self._threshold
        for key in [key for key in keys if (key * _MIX & _MASK) < threshold]:
            if self._threshold == threshold or (key * _MIX & _MASK) < self._threshold:
                self._sampled(key)

    def _sampled(self, key: int) -> None:
        last = self._last.pop(key, 0)
        count = last & _COUNTS
        distance = inf
        if last:
            at = bisect_left(self._times, last)
            rank = len(self._times) - at  # 1: used last of all
            del self._times[at]
            distance = (rank - 0.5) * self._weight + 0.5
        self._distances.add(distance, self._weight, self._weight * (2 * count + 1))  # n of them make a share of n²
        self._clock += _COUNTS + 1
        last = self._clock + min(count + 1, _COUNTS)
        self._last[key] = last
        self._times.append(last)
        while len(self._last) > self.samples:  # a lower rate may happen to spare every key
            self._shrink()

    def _shrink(self) -> None:
        """Fewer keys: by a lower rate, or at the lowest one by forgetting those not used for longest."""
        if self._threshold > self._lowest:
            self._threshold = max(self._lowest, int(self._threshold * _LOWER))
            self._weight = _FULL / self._threshold
            kept: Iterable[tuple[int, int]] = (
                (key, last) for key, last in self._last.items() if (key * _MIX & _MASK) < self._threshold
            )
        else:
            kept = islice(self._last.items(), len(self._last) - int(self.samples * _LOWER), None)
        self._last = dict(kept)
        self._times = array("q", self._last.values())

    def age(self, factor: float) -> None:
        """Let accesses so far count `factor` (0 to 1) times as much as those to come."""
        self.accesses *= factor
        self._distances.scale(factor)

    def curve(self) -> MissRatioCurve:
        """As seen so far."""
        sizes, sums = self._distances.cumulative(self.accesses)
        hits = [min(1.0, total / (self.accesses or 1.0)) for total in sums]
        return MissRatioCurve(sizes, hits, self.accesses, self.rate)
