"""Miss-ratio curves from a sample of the keys, in constant memory: SHARDS (Waldspurger et al., FAST '15), for long use.

A key is sampled if its hash is below a threshold, so either all accesses to a key are seen or none. Distances among
sampled keys are the real distances times the sampling rate. As in SHARDS of fixed size (§3.3), new keys lower the
threshold, so that at most `samples` blocks are stored.

Keys may have sizes. A key of size n is n blocks that are always requested together: all of them or none is sampled, and
the distances count blocks.

There are three changes, because a pool runs for months and SHARDS was designed for traces:
- The sample's surplus or lack of accesses is corrected at the distances where chance most likely caused it
  (`DistanceHistogram`). SHARDS-adj (§3.2) corrects only the smallest distance.
- All distances above `largest`, the largest cache of interest, share one bucket. So the rate never falls below
  samples ÷ largest: at that rate the least recently used key is dropped, whatever its hash. (SHARDS lowers its rate
  with every new key, until it samples nothing.)
- `age` reduces the weight of old accesses, so that the curve describes the present load.

An access costs a comparison, and a multiplication unless keys are hashes. A sampled one costs about 2 µs more, for a
binary search in the sorted times of last access, which gives the distance.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain, compress, islice, repeat
from math import inf

from plumage.errors import ConfigurationError
from plumage.mrc.curve import MissRatioCurve

__all__ = ["DistanceHistogram", "ReuseSampler"]

_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15
_FULL = 1 << 64
_RARE = _FULL >> 8
"""Below this threshold most prompts have no sampled key, which their smallest hash shows in a third of the time."""
_LOWER = 0.875
"""An eighth of the sample is dropped at a time, since each drop passes over all of it."""
_COUNTS = (1 << 16) - 1
"""The largest count of a key's accesses. 47 bits are left for its time."""
_BITS = 6
_EXACT = 2 << _BITS


class ReuseSampler:
    """samples: most blocks that are stored; 4,096 give a hit ratio to within 1 % and take 0.7 MB. largest: the largest
    cache, in blocks, that the curve covers. hashed: all keys are good hashes of 64 bits, so none is hashed again."""

    def __init__(self, samples: int = 4096, largest: int = 1 << 24, *, hashed: bool = False) -> None:
        if samples < 16 or largest < 16:
            raise ConfigurationError(f"samples and largest must be at least 16, got {samples} and {largest}")
        self.samples = samples
        self.largest = largest
        self.accesses = 0.0
        self._hashed = hashed
        self._threshold = _FULL
        self._lowest = min(_FULL, int(_FULL * samples * _LOWER / largest))
        self._weight = 1.0  # the number of accesses that one sampled access represents
        self._times = array("q")  # times of last access, ascending; the low bits count the key's accesses
        self._last: dict[int, int] = {}  # key -> its entries in `_times`, oldest first
        self._sizes: dict[int, int] = {}  # key -> number of its entries, above one
        self._clock = 0
        self._distances = DistanceHistogram(largest)

    def __len__(self) -> int:
        """The number of stored keys."""
        return len(self._last)

    @property
    def rate(self) -> float:
        """The share of keys that is sampled."""
        return self._threshold / _FULL

    def access(self, key: int) -> None:
        """Counts a request for one block. `key`: its hash, or any unique number."""
        self.accesses += 1.0
        if self._hash(key) < self._threshold:
            self._sampled(key, 1)

    def access_all(self, keys: Sequence[int], ends: Sequence[int] = ()) -> None:
        """Blocks in the order of their requests: a prompt's chain from its root. ends: the blocks up to and
        with each key, from 0 on; a key always has the same size. Empty: each key is one block."""
        self.accesses += ends[len(keys)] if ends else len(keys)
        threshold = self._threshold
        hashes = keys if self._hashed else [key * _MIX & _MASK for key in keys]
        if threshold < _RARE and (not hashes or min(hashes) >= threshold):
            return  # as most chains in the long run
        below = map(threshold.__gt__, hashes)
        for place in compress(range(len(keys)), below):
            key = keys[place]
            if self._threshold == threshold or self._hash(key) < self._threshold:
                self._sampled(key, ends[place + 1] - ends[place] if ends else 1)

    def _hash(self, key: int) -> int:
        return key if self._hashed else key * _MIX & _MASK

    def _sampled(self, key: int, size: int) -> None:
        last = self._last.pop(key, 0)
        count = last & _COUNTS
        distance = inf
        if last:
            at = bisect_left(self._times, last)
            rank = len(self._times) - at  # of the key's first block; 1: used last of all
            del self._times[at : at + size]
            distance = (rank - 0.5) * self._weight + 0.5
        weight = size * self._weight
        self._distances.add(distance, weight, size * weight * (2 * count + 1))  # n of them make a share of n²
        self._clock += _COUNTS + 1
        last = self._clock + min(count + 1, _COUNTS)
        self._last[key] = last
        if size > 1:
            self._sizes[key] = size
            self._times.extend([last] * size)
        else:
            self._times.append(last)
        while len(self._times) > self.samples and len(self._last) > 1:  # a lower rate may happen to spare every key
            self._shrink()

    def _shrink(self) -> None:
        """Store fewer keys: lower the rate, or at the lowest rate drop the least recently used keys."""
        if self._threshold > self._lowest:
            self._threshold = max(self._lowest, int(self._threshold * _LOWER))
            self._weight = _FULL / self._threshold
            kept: Iterable[tuple[int, int]] = (
                (key, last) for key, last in self._last.items() if self._hash(key) < self._threshold
            )
        else:
            kept = islice(self._last.items(), len(self._last) - int(len(self._last) * _LOWER), None)
        self._last = dict(kept)
        self._sizes = {key: size for key, size in self._sizes.items() if key in self._last}
        times: Iterable[int] = self._last.values()
        if self._sizes:
            sizes = map(self._sizes.get, self._last, repeat(1))
            times = chain.from_iterable(map(repeat, times, sizes))
        self._times = array("q", times)

    def age(self, factor: float) -> None:
        """Multiply the weight of all accesses so far by `factor` (0 to 1)."""
        self.accesses *= factor
        self._distances.scale(factor)

    def curve(self) -> MissRatioCurve:
        """The curve of all accesses so far."""
        sizes, sums = self._distances.cumulative(self.accesses)
        hits = [min(1.0, total / (self.accesses or 1.0)) for total in sums]
        return MissRatioCurve(sizes, hits, self.accesses, self.rate)


class DistanceHistogram:
    """Weights of accesses by distance, up to `largest`, in bounded memory: exact when small, 1.6 % wide above.

    Distances up to 127 have a bucket each. Above, each doubling is divided into 64 buckets. A million blocks take 970
    buckets.

    A sample of keys stands for more or fewer accesses than there really were, and the difference must be corrected. A
    key with n accesses shifts the sum by about n, by chance. So its share of the difference is proportional to n² (the
    mean of one Gaussian term given the sum). Each access therefore also adds a *share*, and the difference is removed
    in proportion to the shares. SHARDS-adj removes it all from the smallest distance. That is right for a few very hot
    keys. It is wrong for conversations, whose blocks are used equally often and at large distances.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        buckets = _bucket(largest) + 2  # the last bucket is for larger distances and first accesses
        self._weights = array("d", bytes(8 * buckets))
        self._shares = array("d", bytes(8 * buckets))

    def add(self, distance: float, weight: float, share: float) -> None:
        """`distance`: infinite for a first access."""
        bucket = -1 if distance > self.largest else _bucket(int(distance))
        self._weights[bucket] += weight
        self._shares[bucket] += share

    def scale(self, factor: float) -> None:
        """Multiply the weight of all accesses so far by `factor`."""
        self._weights = array("d", (weight * factor for weight in self._weights))
        self._shares = array("d", (share * factor for share in self._shares))

    @property
    def total(self) -> float:
        return sum(self._weights)

    def cumulative(self, accesses: float) -> tuple[list[int], list[float]]:
        """Distances, and how many of the real `accesses` lie at each or less. Distances without an access are left
        out."""
        missing = (accesses - self.total) / (sum(self._shares) or 1.0)
        sizes, sums, total = [0], [0.0], 0.0
        for bucket in range(1, len(self._weights) - 1):
            if self._weights[bucket]:
                if sizes[-1] < _lower(bucket) - 1:
                    sizes.append(_lower(bucket) - 1)
                    sums.append(sums[-1])
                total += self._weights[bucket] + missing * self._shares[bucket]
                sizes.append(min(_lower(bucket + 1) - 1, self.largest))
                sums.append(max(total, sums[-1]))
        return sizes, sums


def _bucket(distance: int) -> int:
    if distance < _EXACT:
        return distance
    shift = distance.bit_length() - _BITS - 1
    return (shift << _BITS) + (distance >> shift)


def _lower(bucket: int) -> int:
    """The smallest distance in a bucket."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    return ((1 << _BITS) + (bucket & (1 << _BITS) - 1)) << shift
