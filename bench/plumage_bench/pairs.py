"""Ratios of measurements taken in pairs, with what chance does to them.

Wall-clock figures of a shared machine wander by tens of percent, but two measurements one right after the other wander
together. So comparisons are ratios within pairs, and their interval is found by drawing pairs again (the percentile
bootstrap of Efron, 1979, on logarithms). The ratio of a thing to itself, measured the same way, tells what is noise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

__all__ = ["PairedRatio", "paired_ratio"]

_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Geometric mean of the pairs' ratios, and the interval that holds it in 95 of 100 such experiments; of one pair
    there is none."""

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.ratio:.3f} (one pair)"
        return f"{self.ratio:.3f} (95 %: {self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def paired_ratio(over: Sequence[float], under: Sequence[float], rng: random.Random) -> PairedRatio:
    """over[i] ÷ under[i], all above 0. ValueError where they are not pairs."""
    if len(over) != len(under) or not over:
        raise ValueError(f"a paired ratio needs as many of one as of the other, got {len(over)} and {len(under)}")
    logs = [log(a / b) for a, b in zip(over, under, strict=True)]
    means = sorted(fmean(rng.choices(logs, k=len(logs))) for _ in range(_DRAWS))
    low, high = means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS) - 1]
    return PairedRatio(exp(fmean(logs)), exp(low), exp(high), len(logs))
