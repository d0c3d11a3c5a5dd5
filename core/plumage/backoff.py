"""Exponential back-off: how long to wait after failures in a row. Pure.

`delay` is the formula. `Backoff` counts the failures of one task. Its jitter keeps clients that lost their server at
the same moment from returning at the same moment.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["Backoff", "Uniform", "delay"]

_MOST_DOUBLINGS: Final = 30  # keeps the float finite after any number of failures


class Uniform(Protocol):
    """The part of `random.Random` that a back-off uses; the caller seeds it."""

    def uniform(self, low: float, high: float, /) -> float: ...


def delay(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row, without jitter: `first`, then twice as long each time.

    failures: at least 1.
    """
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


class Backoff:
    """The waits of one task. Seconds: the first wait is at most `first`, none is above `longest`.

    rng: draws each wait from its whole span (full jitter). None: no jitter, for a task that has no peers.
    `failures`: in a row.
    """

    def __init__(self, rng: Uniform | None, first: float = 0.1, longest: float = 3.0) -> None:
        self._rng, self._first, self._longest = rng, first, longest
        self.failures = 0

    def next(self) -> float:
        """Counts a failure. Returns the seconds to wait after it."""
        self.failures += 1
        span = delay(self.failures, self._first, self._longest)
        if self._rng is None:
            return span
        lowest = min(self._first, self._longest) / 2
        return self._rng.uniform(lowest, span)

    def reset(self) -> None:
        self.failures = 0
