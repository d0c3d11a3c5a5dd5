"""A histogram of stack distances in bounded memory: exact when small, 1.6 % wide above.

Distances up to 127 have a bucket each; above, each doubling is cut into 64. A million blocks take 970 buckets.

A sample of keys stands for more or fewer accesses than there were. Where does the difference belong? A key that is
asked for n times shifts the sum by about n, by chance, so its share of the difference is as n² (the mean of one
Gaussian term given the sum). Each access therefore also leaves a *share*, and the difference is taken away in
proportion. SHARDS-adj takes it all from the smallest distance, which is right for a few very hot keys and wrong for
conversations, whose blocks are asked for equally often and at large distances.
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
        buckets = _bucket(largest) + 2  # the last one for what is further, first accesses included
        self._weights = array("d", bytes(8 * buckets))
        self._shares = array("d", bytes(8 * buckets))

    def add(self, distance: float, weight: float, share: float) -> None:
        """`distance`: infinite for a first access."""
        bucket = -1 if distance > self.largest else _bucket(int(distance))
        self._weights[bucket] += weight
        self._shares[bucket] += share

    def scale(self, factor: float) -> None:
        """Let everything so far count `factor` times as much."""
        self._weights = array("d", (weight * factor for weight in self._weights))
        self._shares = array("d", (share * factor for share in self._shares))

    @property
    def total(self) -> float:
        return sum(self._weights)

    def cumulative(self, accesses: float) -> tuple[list[int], list[float]]:
        """Distances, and how many of the `accesses` there were in truth lie at each or less; steps at which nothing
        was seen are left out."""
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
