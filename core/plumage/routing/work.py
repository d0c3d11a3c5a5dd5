"""W, the decaying work of each replica (KVRouting §4.2, eq. 6): seconds of service that were routed and are not done.

W decays by 31/32 every 20 ms, a half-life of about 437 ms. It rises by a request's service time when the request is
routed, and falls by the rest of that time when the request ends. Decay is linear in W, so the rest of one request is
its own time after the same decay; no list of requests is needed. All slots share one factor, so a read of W is one
multiplication.
"""

from __future__ import annotations

from math import exp, log

__all__ = ["DecayingWork"]

_REBASE_EXPONENT = 60.0  # e^60: stored sums neither overflow nor lose their low digits


class DecayingWork:
    """Values are stored multiplied by e^(rate·(t − base)). `fade(now)` is the factor that scales them down to `now`."""

    __slots__ = ("_at", "_base", "_fade", "_rate", "_scaled")

    def __init__(self, *, factor: float = 31 / 32, interval: float = 0.020) -> None:
        self._rate = -log(factor) / interval
        self._base = 0.0
        self._at, self._fade = 0.0, 1.0  # the last fade: a request needs it twice for one moment
        self._scaled: list[float] = []

    @property
    def scaled(self) -> list[float]:
        """The stored values by slot, for loops over many slots: multiply by `fade(now)`, and do not change the list."""
        return self._scaled

    def grow(self, slots: int) -> None:
        self._scaled.extend([0.0] * (slots - len(self._scaled)))

    def fade(self, now: float) -> float:
        if now == self._at:
            return self._fade
        exponent = max(self._rate * (now - self._base), 0.0)  # a clock that steps back causes no decay
        if exponent > _REBASE_EXPONENT:
            self._rebase(now, exp(-exponent) if exponent < 700.0 else 0.0)
            exponent = 0.0
        self._at, self._fade = now, exp(-exponent)
        return self._fade

    def at(self, slot: int, now: float) -> float:
        fade = self.fade(now)
        return self._scaled[slot] * fade

    def add(self, slot: int, seconds: float, now: float) -> None:
        fade = self.fade(now)
        self._scaled[slot] += seconds / fade

    def release(self, slot: int, seconds: float, added_at: float, now: float) -> None:
        """Subtract the rest of `seconds` that were added at `added_at`. Rounding never makes the value negative."""
        fade = self.fade(now)
        left = seconds * exp(-min(self._rate * max(now - added_at, 0.0), 700.0))
        self._scaled[slot] = max(self._scaled[slot] - left / fade, 0.0)

    def clear(self, slot: int) -> None:
        self._scaled[slot] = 0.0

    def _rebase(self, now: float, fade: float) -> None:
        self._scaled[:] = [value * fade for value in self._scaled]
        self._base = now
