"""The median interval between two uses of a block, followed online on a sample of uses, of cached blocks and others."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["ReuseInterval"]

_EVERY = 16
_NOISE = 32
_STEP = 0.01
_SETTLE = 10


class ReuseInterval:
    """`median` starts as given; each interval seen moves its logarithm by a step, large at first.

    Every 16th *use* is watched until its block's next one. Sampling blocks by their hash, as SHARDS does for curves,
    would let one block of a prompt that all requests share give most of the intervals, if its hash is in the sample.
    For the same reason intervals below a 32nd of the median are passed over: they tell how hot such a block is, not
    when others return. And cached blocks alone would only show intervals that the cache is large enough to see. At most
    `blocks` are watched at a time, the longest watched dropped first.
    """

    def __init__(self, start: float, *, blocks: int = 16_384) -> None:
        self.median = start
        self._blocks = blocks
        self._watched: dict[int, int] = {}
        self._skip = 0
        self._seen = 0

    def use(self, hashes: Sequence[int], time: int) -> None:
        """The blocks `hashes` are used at `time`, counted in blocks used."""
        watched = self._watched
        for block in hashes:
            since = watched.pop(block, None)
            if since is not None and (time - since) * _NOISE > self.median:
                self._learn(time - since)
        while self._skip < len(hashes):
            watched[hashes[self._skip]] = time
            self._skip += _EVERY
        self._skip -= len(hashes)
        while len(watched) > self._blocks:
            del watched[next(iter(watched))]

    def _learn(self, interval: int) -> None:
        step = _STEP + 0.5 / (1 + self._seen / _SETTLE)
        self._seen += 1
        self.median *= math.exp(step if interval > self.median else -step)
