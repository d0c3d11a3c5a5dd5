"""The time that a policy needs to reach its final rate after the load has changed."""

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
    """Seconds from `start` to the window from which all windows have at least (1 - tolerance) of the mean rate of the
    last half of the windows.

    times, totals: seconds, ascending, and the tokens made until then. Windows of `window` seconds lie between `start`
    and `end`. NaN if there are fewer than four of them, or the last one is still below.
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
