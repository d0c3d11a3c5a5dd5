"""When a replica that failed is tried again: a circuit breaker, pure, with the clock passed in.

Closed: requests pass. `failures` in a row open it, a refused connection at once. Open: nothing passes until the
back-off is over, which doubles from `base` to `cap` while trials fail. Half-open: one trial at a time passes; it
closes the breaker or opens it again.

The router's own probe is no trial of what requests need: an engine may answer its health check and fail every
completion. It closes only a breaker that a failed connection opened.
"""

from __future__ import annotations

from enum import StrEnum

from plumage_router.config import BreakerConfig

__all__ = ["Breaker", "BreakerState"]


class BreakerState(StrEnum):
    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


class Breaker:
    """One replica's. `advance` moves it from open to half-open by the clock; asking changes nothing."""

    __slots__ = ("_config", "_delay", "_failures", "_retry_at", "_trial", "_unreachable", "opened", "state")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._delay = config.base
        self._retry_at = 0.0
        self._trial = False
        self._unreachable = False  # no connection could be made, last time
        self.state = BreakerState.CLOSED
        self.opened = 0  # how often, for the metrics

    def use(self, config: BreakerConfig) -> None:
        """Other bounds, from the next failure on."""
        self._config = config
        self._delay = min(max(self._delay, config.base), config.cap)

    def allows(self, now: float) -> bool:
        """May a request go there now? A half-open breaker says yes until `started` takes its one trial."""
        if self.state is BreakerState.OPEN:
            return now >= self._retry_at
        return self.state is BreakerState.CLOSED or not self._trial

    def advance(self, now: float) -> None:
        """Half-open once the back-off is over."""
        if self.state is BreakerState.OPEN and now >= self._retry_at:
            self._half_open()

    def started(self) -> None:
        """A request was sent there."""
        if self.state is BreakerState.HALF_OPEN:
            self._trial = True

    def succeeded(self) -> None:
        """An answer began."""
        self._failures = 0
        self._trial = self._unreachable = False
        self._delay = self._config.base
        self.state = BreakerState.CLOSED

    def reached(self, *, back: bool) -> None:
        """The engine answers its health check; `back`: for a while it did not."""
        if self._unreachable:
            self.succeeded()
        elif back and self.state is BreakerState.OPEN:
            self._half_open()

    def abandoned(self) -> None:
        """A request ended with nothing learned (its client left): a trial is free again."""
        self._trial = False

    def failed(self, now: float, *, certain: bool = False) -> None:
        """The replica gave no answer. `certain`: no connection could be made, so there is nothing to wait for."""
        self._failures += 1
        self._trial = False
        self._unreachable = certain
        if self.state is BreakerState.CLOSED:
            if certain or self._failures >= self._config.failures:
                self._open(now)
        elif self.state is BreakerState.HALF_OPEN:
            self._delay = min(self._delay * 2, self._config.cap)
            self._open(now)

    def _half_open(self) -> None:
        self.state = BreakerState.HALF_OPEN
        self._trial = False

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self._retry_at = now + self._delay
        self.opened += 1
