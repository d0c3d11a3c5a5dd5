"""A circuit breaker for one replica: stops requests after failures, and tries again later. Pure.

- Closed: requests pass. `failures` in a row open it; a refused connection opens it at once.
- Open: no request passes until the back-off is over. The back-off doubles from `base` to `cap` while trials fail.
- Half-open: one trial at a time passes. It closes the breaker or opens it again.

An engine may answer its health check and fail every completion. So the router's own health check closes only a breaker
that a failed connection opened.
"""

from __future__ import annotations

from enum import StrEnum

from plumage.backoff import delay
from plumage.settings.router_config import BreakerConfig

__all__ = ["Breaker", "BreakerState"]


class BreakerState(StrEnum):
    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


class Breaker:
    """`opened`: how often it opened, for the metrics. Times are seconds of the caller's clock."""

    __slots__ = ("_config", "_failed_trials", "_failures", "_retry_at", "_trial", "_unreachable", "opened", "state")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._failed_trials = 0
        self._retry_at = 0.0
        self._trial = False
        self._unreachable = False  # the last failure was a failed connection
        self.state = BreakerState.CLOSED
        self.opened = 0

    def configure(self, config: BreakerConfig) -> None:
        """Sets other bounds, from the next failure on."""
        self._config = config

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now. A half-open breaker allows one trial, until `started`."""
        if self.state is BreakerState.OPEN:
            return now >= self._retry_at
        return self.state is BreakerState.CLOSED or not self._trial

    def advance(self, now: float) -> None:
        """Becomes half-open once the back-off is over."""
        if self.state is BreakerState.OPEN and now >= self._retry_at:
            self._half_open()

    def started(self) -> None:
        """A request was sent to the replica."""
        if self.state is BreakerState.HALF_OPEN:
            self._trial = True

    def succeeded(self) -> None:
        """An answer began."""
        self._failures = 0
        self._trial = self._unreachable = False
        self._failed_trials = 0
        self.state = BreakerState.CLOSED

    def reached(self, *, back: bool) -> None:
        """The engine answers its health check. back: the checks before failed."""
        if self._unreachable:
            self.succeeded()
        elif back and self.state is BreakerState.OPEN:
            self._half_open()

    def abandoned(self) -> None:
        """A request ended without a result, for example because its client left. Another trial is allowed."""
        self._trial = False

    def failed(self, now: float, *, certain: bool = False) -> None:
        """The replica did not answer. certain: no connection could be made, so the breaker opens at once."""
        self._failures += 1
        self._trial = False
        self._unreachable = certain
        if self.state is BreakerState.CLOSED:
            if certain or self._failures >= self._config.failures:
                self._open(now)
        elif self.state is BreakerState.HALF_OPEN:
            self._failed_trials += 1
            self._open(now)

    def _half_open(self) -> None:
        self.state = BreakerState.HALF_OPEN
        self._trial = False

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self._retry_at = now + delay(self._failed_trials + 1, self._config.base, self._config.cap)
        self.opened += 1
