"""Ratios of measurements taken in pairs, with what chance does to them.

Wall-clock figures of a shared machine vary by tens of percent, but two measurements one right after the other vary
together. So comparisons are ratios within pairs. Their interval is Student's, on the logarithms of the ratios. Drawing
the pairs again (Efron's percentile bootstrap) makes intervals too narrow: 82 % instead of 95 % at five pairs. Fewer
than five pairs have a range, the least and the greatest ratio of a pair. The ratio of a thing to itself, measured the
same way, shows what is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, fmean, stdev

__all__ = ["LEAST_PAIRS", "PairedRatio", "paired_ratio", "students_t"]

LEAST_PAIRS = 5
"""With fewer pairs there is no interval."""


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Geometric mean of the pairs' ratios. low, high: its 95 % interval where there are `LEAST_PAIRS` pairs or more;
    of fewer, the least and the greatest ratio of a pair."""

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def spread(self) -> str:
        """`low` and `high` in words."""
        return "95 %" if self.pairs >= LEAST_PAIRS else "range"

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.ratio:.3f} (one pair)"
        return f"{self.ratio:.3f} ({self.spread}: {self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> PairedRatio:
    """over[i] ÷ under[i]. All must be above 0. ValueError if the lengths differ."""
    if len(over) != len(under) or not over:
        raise ValueError(f"a paired ratio needs as many of one as of the other, got {len(over)} and {len(under)}")
    logs = [log(a / b) for a, b in zip(over, under, strict=True)]
    mean = fmean(logs)
    if len(logs) < LEAST_PAIRS:
        return PairedRatio(exp(mean), exp(min(logs)), exp(max(logs)), len(logs))
    half = students_t(len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return PairedRatio(exp(mean), exp(mean - half), exp(mean + half), len(logs))


def students_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, right to 0.1 % from four degrees of freedom on (Abramowitz and Stegun,
    26.7.5)."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))
