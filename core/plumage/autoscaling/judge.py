"""Predicts the hit ratio with another number of replicas, cautiously, from the miss-ratio curve.

The measured ratio is of the replicas there are, the curve of one LRU cache of any size. Two readings lead from one to
the other:
- *step*: the measured ratio, and what the curve gains or loses between the caches' sizes. Right where the caches are
  cold, and hit less than their size would let them.
- *shift*: the size at which the curve has about the measured ratio, taken in proportion. Right where caches hold the
  same prefixes several times, and so are smaller than they look.
The lower of the two counts, both for one more replica and for one fewer: a replica is bought, or given up, only where
both readings agree. Both rise with the number of replicas, so the prediction does.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from plumage.mrc.curve import MissRatioCurve

__all__ = ["ABOUT", "FEWEST_ACCESSES", "HARMLESS", "CacheJudge"]

FEWEST_ACCESSES: Final = 1000.0
"""A curve of fewer accesses is not used: the error of a share of 0.5 is 3 % there (two standard errors)."""
HARMLESS: Final = 0.005
"""A hit ratio this much lower counts as the same: half a percent, the error of the sampled curve (bench `mrc`)."""

ABOUT: Final = 0.05
"""A measured ratio this near to the curve's does not show the caches' real size: engines' policies are not LRU, and
differ from it by some percent either way (bench `eviction`)."""
_ROUNDING: Final = 1e-9
"""Predictions that differ by less are equal. Otherwise a rounding could ask for one more replica."""


@dataclass(frozen=True, slots=True)
class CacheJudge:
    """measured: the hit ratio now, of `replicas` caches of `cache` each, in the curve's unit; all above zero."""

    curve: MissRatioCurve
    measured: float
    replicas: int
    cache: float

    def predict(self, replicas: int) -> float:
        """The hit ratio with so many replicas, once they are warm."""
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
    """The smallest cache with that hit ratio, by the curve; None if it never gets there."""
    at = bisect_left(curve.hits, ratio)
    if at == len(curve.hits):
        return None
    if at == 0:
        return float(curve.sizes[0])
    low, high = curve.hits[at - 1], curve.hits[at]
    return curve.sizes[at - 1] + (curve.sizes[at] - curve.sizes[at - 1]) * (ratio - low) / (high - low)
