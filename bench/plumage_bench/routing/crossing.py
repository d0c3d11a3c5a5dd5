"""The rate at which too many requests become late, from many seeds together.

A single seed's share of late requests is not a smooth function of the rate: one request more or less in a queue changes
all later decisions. So a higher rate may meet the limit while a lower one does not. If a search halves a bracket on one
seed, its result depends on its starting point (8 % from seed to seed for multi-turn conversations). Here several seeds
are served at each of a series of rates (*rungs*), and all their requests count together. A straight line through five
rungs, of the logarithm of the late share over the logarithm of the rate, crosses the limit at the result. All
contenders use the same rungs and seeds, so their ratio has an interval, see `rate_ratio`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from statistics import fmean, stdev

from plumage_bench.pairs import PairedRatio, students_t
from plumage_bench.routing.rate_search import LATE_SHARE

__all__ = ["RUNG", "Curve", "climb", "rate_ratio"]

RUNG = 1.05  # ratio of neighbouring rungs
_STEP = log(RUNG)
_HALF = 2  # rungs on each side of the crossing
_ROUNDS = 8  # rounds of measuring higher or lower rungs
_FLATTEST = 0.2  # smallest slope; a flatter line has no useful crossing
_LEAST_SHARE = 1e-4  # a share of 0 has no logarithm

LateShares = Callable[[Sequence[tuple[int, float]]], Sequence[Sequence[float]]]
"""For each (curve, requests a second) the share of late requests of each seed."""


@dataclass(frozen=True)
class Curve:
    """late: by rung, the share of late requests of each seed; all seeds send equally many. Rung k is RUNG^k requests a
    second."""

    late: Mapping[int, Sequence[float]]

    @cached_property
    def rate(self) -> float:
        """The rate, in requests a second, at which the limit is reached."""
        return _rate(self._crossing(self._window, range(self.seeds)))

    @property
    def seeds(self) -> int:
        return len(next(iter(self.late.values())))

    @property
    def reached(self) -> bool:
        """Whether the limit is kept at any measured rung, by all seeds together."""
        return any(fmean(shares) <= LATE_SHARE for shares in self.late.values())

    def drawn(self, seeds: Sequence[int]) -> float:
        """The rate for these seeds only; the line goes through the same rungs."""
        return _rate(self._crossing(self._window, seeds))

    def missing(self) -> list[int]:
        """Rungs near the crossing that are not measured yet."""
        centre = round(self._crossing(self._window, range(self.seeds)))
        return [rung for rung in _around(centre) if rung not in self.late]

    def with_rung(self, rung: int, late: Sequence[float]) -> Curve:
        return Curve({**self.late, rung: late})

    def plain(self) -> dict[str, list[float]]:
        """The shares by requests a second."""
        return {f"{_rate(rung):.4g}": list(self.late[rung]) for rung in sorted(self.late)}

    @cached_property
    def _window(self) -> Sequence[int]:
        """The five rungs about the crossing, if their line crosses the limit between them."""
        rungs = sorted(self.late)
        window = self._about(sum(rungs) / len(rungs))
        for _ in range(_ROUNDS):
            nearer = self._about(self._crossing(window, range(self.seeds)))
            if nearer == window:
                break
            window = nearer
        return window

    def _about(self, centre: float) -> Sequence[int]:
        nearest = sorted(self.late, key=lambda rung: (abs(rung - centre), rung))
        return sorted(nearest[: 2 * _HALF + 1])

    def _crossing(self, rungs: Sequence[int], seeds: Sequence[int]) -> float:
        """The crossing, in rungs, at most one beyond the window: the line is not valid far from its points."""
        shares = [log(max(fmean(self.late[rung][seed] for seed in seeds), _LEAST_SHARE)) for rung in rungs]
        middle, level = fmean(rungs), fmean(shares)
        slope = sum((rung - middle) * share for rung, share in zip(rungs, shares, strict=True))
        slope /= sum((rung - middle) ** 2 for rung in rungs)
        lowest, highest = min(rungs) - 1.0, max(rungs) + 1.0
        short = log(LATE_SHARE) - level
        if slope < _FLATTEST * _STEP:
            return highest if short > 0.0 else lowest
        return min(max(middle + short / slope, lowest), highest)


def _rate(rung: float) -> float:
    return exp(rung * _STEP)


def _around(rung: int) -> range:
    return range(rung - _HALF, rung + _HALF + 1)


def climb(starts: Sequence[float], shares: LateShares) -> list[Curve]:
    """A curve for each start, a rate in requests a second at which the limit may be reached. Measures rungs until there
    are two on each side of the crossing. All rungs of a round are requested at once, so that they can run in
    parallel."""
    begun = [round(log(start) / _STEP) for start in starts]
    curves = [Curve({}) for _ in starts]
    wanted = [(index, rung) for index, centre in enumerate(begun) for rung in _around(centre)]
    for _ in range(_ROUNDS):
        if not wanted:
            break
        for (index, rung), late in zip(wanted, shares([(index, _rate(rung)) for index, rung in wanted]), strict=True):
            curves[index] = curves[index].with_rung(rung, late)
        wanted = [(index, rung) for index, curve in enumerate(curves) for rung in curve.missing()]
    return curves


def rate_ratio(ours: Curve, theirs: Curve) -> PairedRatio:
    """Our rate ÷ theirs, both of the same five seeds or more. The interval is Student's, with the standard error from
    leaving out one seed after the other (Tukey's jackknife, 1958)."""
    count = ours.seeds
    ratio = log(ours.rate / theirs.rate)
    without = []
    for left in range(count):
        seeds = [seed for seed in range(count) if seed != left]
        without.append(log(ours.drawn(seeds) / theirs.drawn(seeds)))
    half = students_t(count - 1) * (count - 1) / sqrt(count) * stdev(without)
    return PairedRatio(exp(ratio), exp(ratio - half), exp(ratio + half), count)
