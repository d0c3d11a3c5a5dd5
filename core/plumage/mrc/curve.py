"""The miss-ratio curve: the share of accesses that an LRU cache of each size would miss.

Before it adds a replica for its cache, an autoscaler must know how many misses would become hits. LRU's curve needs
only the stack distance of each access: the number of keys used since the last use of this key. A cache of n blocks hits
exactly the accesses at distance n or less (Mattson et al., 1970). Other policies differ from LRU at a given size, but
where the curve of LRU is flat a larger cache helps none of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MissRatioCurve"]


@dataclass(frozen=True, slots=True)
class MissRatioCurve:
    """`hits[i]`: the share of accesses at a stack distance of `sizes[i]` or less; both ascend. The curve is linear
    between two sizes, and constant beyond the last, where nothing is known.

    accesses: the number of accesses behind the curve. rate: the share of keys that was sampled.
    """

    sizes: Sequence[int]
    hits: Sequence[float]
    accesses: float
    rate: float = 1.0

    def hit_ratio(self, blocks: float) -> float:
        """The hit ratio of an LRU cache with `blocks` blocks. 0 where there was no access yet."""
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
        """The share of accesses that miss now and would hit with `more` blocks; negative for fewer blocks."""
        return self.hit_ratio(blocks + more) - self.hit_ratio(blocks)
