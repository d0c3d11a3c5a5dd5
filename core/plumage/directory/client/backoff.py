"""Exponential back-off with full jitter.

The wait doubles after each failure and is drawn from its whole span. Clients that lost their server at the same moment
therefore do not return at the same moment.
"""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Seconds: the first wait is at most `first`, none is above `longest`."""

    def __init__(self, rng: random.Random, first: float = 0.1, longest: float = 3.0) -> None:
        self._rng, self._first, self._longest = rng, first, longest
        self.failures = 0

    def next(self) -> float:
        span = min(self._longest, self._first * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return self._rng.uniform(self._first / 2, max(span, self._first))

    def reset(self) -> None:
        self.failures = 0
