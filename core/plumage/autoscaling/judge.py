"""Predicts the hit ratio with another number of replicas, cautiously, from the miss-ratio curve.

The measured ratio belongs to the present replicas, the curve to one LRU cache of any size. There are two ways to
predict the ratio of another number of replicas:
- *step*: the measured ratio, plus the curve's difference between the two cache sizes. It is right where caches are
  cold, and so hit less than their size permits.
- *shift*: find the size at which the curve has about the measured ratio, and scale it in proportion. It is right where
  caches hold the same prefixes several times, and so hold fewer distinct blocks than their size.

The lower one counts, for one more replica and for one fewer. So a replica is added or deleted only where both agree.
Both grow with the number of replicas, so the prediction does too.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from plumage.mrc.curve import MissRatioCurve

__all__ = ["ABOUT", "FEWEST_ACCESSES", "HARMLESS", "CacheJudge"]

FEWEST_ACCESSES: Final = 1000.0
"""A curve of fewer accesses is not used. With this number the error of a share of 0.5 is 3 % (two standard errors)."""
HARMLESS: Final = 0.005
"""A hit ratio that is lower by this much counts as equal: half a percent, the error of the sampled curve (bench
`mrc`)."""

ABOUT: Final = 0.05
"""A measured ratio that is this near to the curve's does not show the caches' real size: engines' policies are not LRU,
and their ratios differ from LRU's by some percent (bench `eviction`)."""
_ROUNDING: Final = 1e-9
"""Predictions that differ by less are equal. Otherwise a rounding could ask for one more replica."""


@dataclass(frozen=True, slots=True)
class CacheJudge:
    """measured: the hit ratio now, of `replicas` caches with size `cache` each, in the curve's unit. All are above
    zero."""

    curve: MissRatioCurve
    measured: float
    replicas: int
    cache: float

    def predict(self, replicas: int) -> float:
        """The hit ratio with this number of replicas, once their caches are warm."""
        if replicas == self.replicas:
            return self.measured
        here, there = self.replicas * self.cache, replicas * self.cache
        step = self.measured + self.curve.hit_ratio(there) - self.curve.hit_ratio(here)
        return min(1.0, max(0.0, min(step, self._shift(replicas))))

    def _shift(self, replicas: int) -> float:
        nominal = self.replicas * self.cache
        least, most = size_of(self.curve, self.measured - ABOUT), size_of(self.curve, self.measured + ABOUT)
        size = min(max(nominal, nominal if least is None else least), nominal if most is None else most)
        other = self.curve.hit_ratio(size * replicas / self.replicas)
        return self.measured + other - self.curve.hit_ratio(size)

    def fewest(self, ratio: float, most: int) -> int | None:
        """The smallest number of replicas, up to `most`, that is predicted to reach the ratio; None if none is."""
        enough = ratio - _ROUNDING
        if self.predict(most) < enough:
            return None
        return bisect_left(range(1, most + 1), True, key=lambda count: self.predict(count) >= enough) + 1


def size_of(curve: MissRatioCurve, ratio: float) -> float | None:
    """The smallest cache with that hit ratio, by the curve; None if the curve never reaches it."""
    at = bisect_left(curve.hits, ratio)
    if at == len(curve.hits):
        return None
    if at == 0:
        return float(curve.sizes[0])
    low, high = curve.hits[at - 1], curve.hits[at]
    return curve.sizes[at - 1] + (curve.sizes[at] - curve.sizes[at - 1]) * (ratio - low) / (high - low)
