"""Ratios of measurements taken in pairs, with what chance does to them.

Wall-clock figures of a shared machine wander by tens of percent, but two measurements one right after the other wander
together. So comparisons are ratios within pairs, and their interval is found by drawing pairs again (the percentile
bootstrap of Efron, 1979, on logarithms). Of fewer than five pairs that bootstrap returns the least and the greatest
pair, which is no 95 % interval: they have a range, and are printed as one. The ratio of a thing to itself, measured the
same way, shows what is noise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

__all__ = ["LEAST_PAIRS", "PairedRatio", "paired_ratio"]

LEAST_PAIRS = 5
"""Fewer have no interval."""
_DRAWS = 2_000


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
        """What `low` and `high` are, in words."""
        return "95 %" if self.pairs >= LEAST_PAIRS else "range"

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.ratio:.3f} (one pair)"
        return f"{self.ratio:.3f} ({self.spread}: {self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def paired_ratio(over: Sequence[float], under: Sequence[float], rng: random.Random) -> PairedRatio:
    """over[i] ÷ under[i], all above 0. ValueError where they are not pairs."""
    if len(over) != len(under) or not over:
        raise ValueError(f"a paired ratio needs as many of one as of the other, got {len(over)} and {len(under)}")
    logs = [log(a / b) for a, b in zip(over, under, strict=True)]
    if len(logs) < LEAST_PAIRS:
        return PairedRatio(exp(fmean(logs)), exp(min(logs)), exp(max(logs)), len(logs))
    means = sorted(fmean(rng.choices(logs, k=len(logs))) for _ in range(_DRAWS))
    low, high = means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS) - 1]
    return PairedRatio(exp(fmean(logs)), exp(low), exp(high), len(logs))
