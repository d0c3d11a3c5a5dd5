"""How many requests without a first token a replica may have.

It may have as many as it started in the last `seconds`, and at least `LEAST`. So a new request waits about `seconds` in
the engine at most, whatever limits the engine: seats, cache, or compute. Each of several routers counts its own
requests and its own starts, so their windows add up to the window of one router that sees all, except for `LEAST`.

The idea is that of a congestion window (BBR, Cardwell et al. 2016, "Congestion-Based Congestion Control"): the measured
rate times the wanted delay.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["LEAST", "StartWindow"]

LEAST: Final = 2
"""Requests that a replica may have without a first token when it started none: one starts, one waits (0292)."""


class StartWindow:
    """Of one replica. Times are seconds on the caller's clock.

    Starts fade exponentially, so the sum is about the number of the last `seconds`.
    """

    __slots__ = ("_at", "_starts")

    def __init__(self) -> None:
        self._starts = 0.0
        self._at = 0.0

    def started(self, now: float, seconds: float) -> None:
        """The replica sent the first token of a request."""
        self._starts = self._recent(now, seconds) + 1.0
        self._at = max(self._at, now)

    def has_room(self, waiting: int, now: float, seconds: float) -> bool:
        """Whether the replica may get another request. waiting: those there without a first token."""
        return waiting < LEAST or waiting < self._recent(now, seconds)

    def _recent(self, now: float, seconds: float) -> float:
        return self._starts * math.exp((self._at - now) / seconds) if now > self._at else self._starts
