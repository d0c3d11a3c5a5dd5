"""When a replica that failed is tried again: a circuit breaker, pure, with the clock passed in.

Closed: requests pass. `failures` in a row open it, a refused connection at once. Open: nothing passes until the
back-off is over, which doubles from `base` to `cap` while trials fail. Half-open: one trial at a time passes; it
closes the breaker or opens it again. The router's own probe also counts as a trial.
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
    """One replica's. `state` is what counted last; `allows` moves it from open to half-open by the clock."""

    __slots__ = ("_config", "_delay", "_failures", "_retry_at", "_trial", "opened", "state")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._delay = config.base
        self._retry_at = 0.0
        self._trial = False
        self.state = BreakerState.CLOSED
        self.opened = 0  # how often, for the metrics

    def allows(self, now: float) -> bool:
        """May a request go there now? A half-open breaker says yes until `started` takes its one trial."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and now >= self._retry_at:
            self.state = BreakerState.HALF_OPEN
            self._trial = False
        return self.state is BreakerState.HALF_OPEN and not self._trial

    def started(self) -> None:
        """A request was sent there."""
        if self.state is BreakerState.HALF_OPEN:
            self._trial = True

    def succeeded(self) -> None:
        """An answer began, or a probe was answered."""
        self._failures = 0
        self._trial = False
        self._delay = self._config.base
        self.state = BreakerState.CLOSED

    def abandoned(self) -> None:
        """A request ended with nothing learned (its client left): a trial is free again."""
        self._trial = False

    def failed(self, now: float, *, certain: bool = False) -> None:
        """The replica gave no answer. `certain`: it refused the connection, so there is nothing to wait for."""
        self._failures += 1
        self._trial = False
        if self.state is BreakerState.CLOSED:
            if certain or self._failures >= self._config.failures:
                self._open(now)
        elif self.state is BreakerState.HALF_OPEN:
            self._delay = min(self._delay * 2, self._config.cap)
            self._open(now)

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self._retry_at = now + self._delay
        self.opened += 1
