"""The miss-ratio curve: what share of accesses an LRU cache of each size would miss.

It answers what an autoscaler asks before it adds a replica for its cache: how many of the misses would have been hits?
LRU's curve is the judge because it needs one number of each access, its stack distance (how many keys were used since
this one was): a cache of n blocks hits exactly the accesses at distance n or less (Mattson et al., 1970). Other
policies do better or worse than LRU at one size; a flat curve is flat for all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MissRatioCurve"]


@dataclass(frozen=True, slots=True)
class MissRatioCurve:
    """`hits[i]`: the share of accesses at a stack distance of `sizes[i]` or less; both ascend. Between two sizes the
    curve is straight; beyond the last one nothing is known, and it stays level.

    accesses: how many the curve rests on. rate: the share of keys that were looked at.
    """

    sizes: Sequence[int]
    hits: Sequence[float]
    accesses: float
    rate: float = 1.0

    def hit_ratio(self, blocks: float) -> float:
        """Of an LRU cache that holds `blocks`. 0 where nothing was seen yet."""
        at = bisect_right(self.sizes, blocks)
        if at == 0:
            return 0.0
        if at == len(self.sizes):
            return self.hits[-1]
        low, high = self.sizes[at - 1], self.sizes[at]
        return self.hits[at - 1] + (self.hits[at] - self.hits[at - 1]) * (blocks - low) / (high - low)

    def miss_ratio(self, blocks: float) -> float:
        return 1.0 - self.hit_ratio(blocks)

    def gain(self, blocks: float, more: float) -> float:
        """The share of accesses that miss now and would hit with `more` blocks; negative for fewer."""
        return self.hit_ratio(blocks + more) - self.hit_ratio(blocks)
