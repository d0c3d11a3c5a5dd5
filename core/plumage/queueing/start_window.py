"""How much work a replica may have in requests without a first token.

It may have as much as it started in the last `seconds`, and at least `LEAST` requests. So a new request waits about
`seconds` in the engine at most, whatever limits the engine: seats, cache, or compute. Each of several routers counts
its own requests and starts. So their windows add up to that of one router that sees all, except for `LEAST`.

Work is the tokens of prompts that the engine has to compute, and a block for each request. Without the block, a burst
of cached prompts would allow as many new ones, and they keep the engine busy for seconds (0293).

The idea is that of a congestion window (BBR, Cardwell et al. 2016, "Congestion-Based Congestion Control"): the measured
rate times the wanted delay.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["LEAST", "REQUEST", "StartWindow"]

LEAST: Final = 2
"""Requests that a replica may have without a first token when it started none: one starts, one waits (0292)."""
REQUEST: Final = 16.0
"""The work of a request without a token to compute: a block, as the last token of a cached prompt costs a step."""


class StartWindow:
    """Of one replica. Times are seconds on the caller's clock; work is tokens.

    Starts fade exponentially, so the sum is about the work of the last `seconds`.
    """

    __slots__ = ("_at", "_started")

    def __init__(self) -> None:
        self._started = 0.0
        self._at = 0.0

    def started(self, work: float, took: float, now: float, seconds: float) -> None:
        """The replica sent the first token of a request of so much work. took: seconds since it got the request.

        Of a long prompt only the part counts that can have been computed in the last `seconds`.
        """
        self._started = self._recent(now, seconds) + work * min(1.0, seconds / max(took, 1e-9))
        self._at = max(self._at, now)

    def has_room(self, waiting: int, work: float, now: float, seconds: float) -> bool:
        """Whether the replica may get another request. waiting: those there without a first token, of so much work."""
        return waiting < LEAST or work < self._recent(now, seconds)

    def _recent(self, now: float, seconds: float) -> float:
        return self._started * math.exp((self._at - now) / seconds) if now > self._at else self._started
