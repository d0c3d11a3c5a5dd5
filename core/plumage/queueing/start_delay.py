"""How long requests are with engines until their first token: what a request in a router's queue has to leave in time.

It keeps the mean and the mean deviation of the last requests, as TCP does for round trips (Jacobson and Karels 1988,
"Congestion Avoidance and Control", section 2 and appendix A).
"""

from __future__ import annotations

from typing import Final

__all__ = ["StartDelay"]

_GAIN: Final = 1 / 16  # of the mean; the deviation follows twice as fast
_DEVIATIONS: Final = 3.0  # above the mean; with 2 a tenth of the answers came late (0292)
_MOST_GROWTH: Final = 2.0  # a delay counts as at most so much of `likely`: one long prompt says little about others
_LEAST_GROWTH: Final = 0.1  # seconds that a delay counts in full: from nearly zero, doubling would take many requests


class StartDelay:
    """Of one router. first: seconds that are expected before any request had a first token."""

    __slots__ = ("_deviation", "_mean", "_seen")

    def __init__(self, first: float) -> None:
        self._mean, self._deviation = first, 0.0
        self._seen = False

    def add(self, seconds: float) -> None:
        """Counts the time from sending a request to its first token."""
        if not self._seen:
            self._seen = True
            self._mean, self._deviation = seconds, seconds / 2
            return
        seconds = min(seconds, max(_MOST_GROWTH * self.likely, _LEAST_GROWTH))
        self._deviation += 2 * _GAIN * (abs(seconds - self._mean) - self._deviation)
        self._mean += _GAIN * (seconds - self._mean)

    @property
    def likely(self) -> float:
        """Seconds within which most requests get their first token."""
        return self._mean + _DEVIATIONS * self._deviation
