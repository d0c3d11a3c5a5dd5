"""Which share of the recent requests begins with a prefix that is cached.

`lbgr` charges a request for the delay of others, so a busy fleet copies a prefix to few replicas. Requests of the same
prefix do not count among these others, because they find the copy. A prefix is named by its last chunk. The prefix of
a request is the longest one that any replica caches. So each conversation is a prefix of its own, and a system prompt
counts where requests share nothing longer.
"""

from __future__ import annotations

from math import exp

from plumage.front import Front
from plumage.routing.interface import Query

__all__ = ["PrefixShares"]

_SECONDS = 30.0  # after which a request counts 1/e
_LEAST = 20.0  # requests: the shares of fewer are noise, so they count as shares of so many
_MOST = 4096  # prefixes, the latest
_REBASE = 60.0  # e^60: stored counts neither overflow nor lose their low digits


class PrefixShares:
    """Counts fade. They are stored multiplied by e^(t ÷ 30 s), so that no count changes while time passes."""

    __slots__ = ("_all", "_base", "_counts", "_front", "_now")

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self._front = Front(self._counts, _MOST)
        self._all = 0.0
        self._base = self._now = 0.0

    def of(self, query: Query) -> float:
        """The share of the query's prefix, from 0 to 1."""
        if not query.cached_chunks:
            return 0.0
        least = _LEAST * self._scale(query.now)
        count = self._counts.get(query.chunks[query.cached_chunks - 1], 0.0)
        return count / (self._all if self._all > least else least)

    def sent(self, query: Query) -> None:
        """Count the request."""
        scale = self._scale(query.now)
        self._all += scale
        if not query.cached_chunks:
            return
        prefix = query.chunks[query.cached_chunks - 1]
        count = self._counts.pop(prefix, 0.0) + scale
        self._front.left(prefix)
        self._counts[prefix] = count
        if len(self._counts) > _MOST:
            self._front.drop()

    def _scale(self, now: float) -> float:
        """What a request counts now. A clock that steps back stands still."""
        if now > self._now:
            self._now = now
        exponent = (self._now - self._base) / _SECONDS
        if exponent > _REBASE:
            factor = exp(-exponent)
            for prefix in self._counts:
                self._counts[prefix] *= factor
            self._all *= factor
            self._base = self._now
            return 1.0
        return exp(exponent)
