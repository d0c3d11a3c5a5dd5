"""Sums over time of the KV usage, from which its deviation in any window follows (MUV of the article, section 3.1).

    MUV = √(mean of squares − square of the mean)

Both means are over time. Counters of the three sums give them for each window between two scrapes.
"""

from __future__ import annotations

from math import sqrt

__all__ = ["UsageSums"]


class UsageSums:
    """seconds: time that was observed. usage, squared: integrals of the usage and of its square over that time."""

    __slots__ = ("seconds", "squared", "usage")

    def __init__(self) -> None:
        self.seconds = self.usage = self.squared = 0.0

    def add(self, seconds: float, usage: float) -> None:
        """The usage, a share of all blocks, was constant for these seconds."""
        self.seconds += seconds
        self.usage += usage * seconds
        self.squared += usage * usage * seconds

    @property
    def deviation(self) -> float:
        """Standard deviation over the time so far; 0 before there is any."""
        if not self.seconds:
            return 0.0
        mean = self.usage / self.seconds
        return sqrt(max(self.squared / self.seconds - mean * mean, 0.0))
