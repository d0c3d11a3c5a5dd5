"""How long a policy takes to be as good as it gets, after the load has changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import nan
from statistics import fmean

__all__ = ["seconds_to_converge"]

_FEWEST = 4


def seconds_to_converge(
    times: Sequence[float], totals: Sequence[float], start: float, end: float, window: float, tolerance: float = 0.15
) -> float:
    """From `start` to the window from which on all have at least (1 - tolerance) of the rate that the last half of the
    windows has on average.

    times, totals: seconds, rising, and tokens made until then; windows of `window` seconds lie from `start` to `end`.
    NaN where there are fewer than four of them, or the last one is still below.
    """
    count = int((end - start) / window)
    if count < _FEWEST or not times:
        return nan
    edges = [_total(times, totals, start + place * window) for place in range(count + 1)]
    rates = [(after - before) / window for before, after in pairwise(edges)]
    least = (1 - tolerance) * fmean(rates[count // 2 :])
    good = count
    while good and rates[good - 1] >= least:
        good -= 1
    return good * window if good < count else nan


def _total(times: Sequence[float], totals: Sequence[float], at: float) -> float:
    """Tokens made until `at`."""
    place = bisect_right(times, at)
    return totals[place - 1] if place else 0.0
