"""Whether a process' memory grows: a straight line through it, with an interval, and the rule that judges it. No I/O.

Samples a few seconds apart are nearly the same sample, so the line goes through means of blocks. Neighbouring blocks
still depend on each other; the interval is widened by their correlation (an AR(1) process has (1 − r)/(1 + r) as many
independent values). It is Student's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Final

from plumage_bench.pairs import students_t

__all__ = ["FLAT", "Slope", "slope_of"]

FLAT: Final = 0.02
"""Of the mean memory. Less growth than this over the window is flat.

No line is exactly level: a heap has gaps, and its largest use until now grows like a logarithm. Two per cent of a
router in the last 13 minutes of the full run is some 40 bytes a request. The smallest Python object that could be kept
for a request, in a set or a dict, takes more than 60. The rule asks that the interval's lower end is above, so that
noise is no leak.
"""
BLOCKS: Final = 20
_LEAST: Final = 8  # blocks with samples
_MOST_DEPENDENT: Final = 0.8  # a larger correlation of so few blocks is the line's own misfit
_LEAST_FREEDOM: Final = 4


@dataclass(frozen=True, slots=True)
class Slope:
    """per_hour, with the ends `low` and `high` of its 95 % interval, in the values' unit. mean: of the values. seconds:
    from the first sample to the last."""

    per_hour: float
    low: float
    high: float
    mean: float
    seconds: float

    def growth(self, per_hour: float) -> float:
        """This slope over the window, as a share of the mean."""
        return per_hour * self.seconds / 3600.0 / self.mean

    def grows(self, flat: float = FLAT) -> bool:
        """Whether the values certainly grow by more than this share of their mean over the window."""
        return self.growth(self.low) > flat


def slope_of(times: Sequence[float], values: Sequence[float], blocks: int = BLOCKS) -> Slope | None:
    """times: seconds, ascending. None where there are too few samples for an interval."""
    if len(times) < _LEAST or times[-1] <= times[0]:
        return None
    points = _means(times, values, blocks)
    if len(points) < _LEAST:
        return None
    at, level = fmean(time for time, _ in points), fmean(value for _, value in points)
    spread = sum((time - at) ** 2 for time, _ in points)
    slope = sum((time - at) * (value - level) for time, value in points) / spread
    rest = [value - level - slope * (time - at) for time, value in points]
    dependent = _correlation(rest)
    independent = len(points) * (1 - dependent) / (1 + dependent)
    error = sqrt(sum(one**2 for one in rest) / (len(points) - 2) / spread * (1 + dependent) / (1 - dependent))
    half = students_t(max(_LEAST_FREEDOM, round(independent) - 2)) * error
    low, high = 3600.0 * (slope - half), 3600.0 * (slope + half)
    return Slope(3600.0 * slope, low, high, fmean(values), times[-1] - times[0])


def _means(times: Sequence[float], values: Sequence[float], blocks: int) -> list[tuple[float, float]]:
    """(mean time, mean value) of each block of equal length that has samples."""
    length = (times[-1] - times[0]) / blocks
    found: dict[int, list[tuple[float, float]]] = {}
    for time, value in zip(times, values, strict=True):
        found.setdefault(min(blocks - 1, int((time - times[0]) / length)), []).append((time, value))
    return [(fmean(time for time, _ in block), fmean(value for _, value in block)) for block in found.values()]


def _correlation(rest: Sequence[float]) -> float:
    """Of neighbours, from 0."""
    total = sum(one**2 for one in rest)
    found = sum(one * other for one, other in pairwise(rest)) / total if total else 0.0
    return min(max(found, 0.0), _MOST_DEPENDENT)
