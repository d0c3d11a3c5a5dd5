"""A histogram of stack distances in bounded memory: exact when small, 1.6 % wide above.

Distances up to 127 have a bucket each. Above, each doubling is divided into 64 buckets. A million blocks take 970
buckets.

A sample of keys stands for more or fewer accesses than there really were, and the difference must be corrected. A key
with n accesses shifts the sum by about n, by chance. So its share of the difference is proportional to n² (the mean of
one Gaussian term given the sum). Each access therefore also adds a *share*, and the difference is removed in proportion
to the shares. SHARDS-adj removes it all from the smallest distance. That is right for a few very hot keys. It is wrong
for conversations, whose blocks are used equally often and at large distances.
"""

from __future__ import annotations

from array import array

__all__ = ["DistanceHistogram"]

_BITS = 6
_EXACT = 2 << _BITS


class DistanceHistogram:
    """Weights of accesses by distance, up to `largest`."""

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
