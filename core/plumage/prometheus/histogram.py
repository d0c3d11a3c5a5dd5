"""Counts values in buckets, as Prometheus' histograms do. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from plumage.prometheus import exposition

__all__ = ["Histogram"]


class Histogram:
    """bounds: upper ends of the buckets, ascending; a value equal to a bound is within. count, sum: of all values."""

    __slots__ = ("_counts", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """O(log buckets)."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def add_all(self, values: Iterable[float]) -> None:
        """Adds many values, faster than `add`: sorts them, then searches once for each bound."""
        ordered = sorted(values)
        if not ordered:  # a router's tick finds none as long as there are no requests
            return
        self._sum += sum(ordered)
        start = 0
        for index, bound in enumerate(self.bounds):
            end = bisect_right(ordered, bound, start)
            self._counts[index] += end - start
            start = end
        self._counts[-1] += len(ordered) - start

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum(self) -> float:
        return self._sum

    @property
    def cumulative(self) -> list[int]:
        """Values up to each bound, and last all values."""
        return list(accumulate(self._counts))

    def lines(self, name: str, text: str) -> Iterator[str]:
        """The metric family in Prometheus' text form."""
        return exposition.histogram(name, text, self.bounds, self.cumulative, self.sum)
