"""A circuit breaker for one replica: stops requests after failures, and tries again later. Pure.

- Closed: requests pass. `failures` in a row open it; a refused connection opens it at once.
- Open: no request passes until the back-off is over. The back-off doubles from `base` to `cap` while trials fail.
- Half-open: one trial at a time passes. It closes the breaker or opens it again.

A replica that fails more often than the others is *ejected* (`outliers.py`). Its breaker opens for 30 s, and twice as
long each further time, up to 300 s (Envoy's defaults). Neither answers to requests of before nor health checks end it,
even after a failed connection. Five minutes after an ejection the next one takes 30 s again.

An engine may answer its health check and fail every completion. So the router's own health check closes only a breaker
that a failed connection opened.

A replica is *suspected* (`outliers.py`) for failures of which the requests may be the cause. Its breaker opens before
that is known. Where requests prove to be the cause, it closes, unless `SUSPECT` other failures are undecided. A failure
that proves to be the replica's ends the suspicion: from then on the breaker is open as after any failure.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from plumage.backoff import delay
from plumage.settings.router_config import BreakerConfig

__all__ = ["EJECTION", "LONGEST_EJECTION", "SUSPECT", "Breaker", "BreakerState", "Outcomes"]

EJECTION: Final = 30.0  # seconds
LONGEST_EJECTION: Final = 300.0
SUSPECT: Final = 10  # undecided failures


class BreakerState(StrEnum):
    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


class Outcomes:
    """Answers and failures since the last `age` but one, each at its end. Not in it: failed connections, silence."""

    __slots__ = ("_answered", "_before", "_failed")

    def __init__(self) -> None:
        self._answered = self._failed = 0
        self._before = (0, 0)

    @property
    def failed(self) -> int:
        return self._failed + self._before[1]

    @property
    def total(self) -> int:
        return self._answered + self._failed + sum(self._before)

    @property
    def rate(self) -> float:
        """The share that failed."""
        return self.failed / max(1, self.total)

    def answer(self) -> None:
        self._answered += 1

    def failure(self) -> None:
        self._failed += 1

    def age(self) -> None:
        """Forgets the older half."""
        self._before = (self._answered, self._failed)
        self._answered = self._failed = 0

    def clear(self) -> None:
        self._answered = self._failed = 0
        self._before = (0, 0)


class Breaker:
    """`opened`: how often it opened. `ejected`: it is open because the replica fails more often than the others.
    `outcomes`: while it is closed. `undecided`: failures since the last answer of which the request may be the cause.
    `suspected`: it opened for these. `acquitted_at`: when requests last proved to be the cause of a suspicion.
    Times are seconds of the caller's clock.
    """

    __slots__ = (
        "_config",
        "_ejected_until",
        "_ejections",
        "_failed_trials",
        "_failures",
        "_retry_at",
        "_trial",
        "_unreachable",
        "acquitted_at",
        "ejected",
        "opened",
        "outcomes",
        "state",
        "suspected",
        "undecided",
    )

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._failed_trials = 0
        self._retry_at = 0.0
        self._trial = False
        self._unreachable = False  # the last failure was a failed connection
        self._ejections = 0  # soon after one another
        self._ejected_until = 0.0
        self.ejected = False
        self.state = BreakerState.CLOSED
        self.opened = 0
        self.outcomes = Outcomes()
        self.undecided = 0
        self.suspected = False
        self.acquitted_at = -math.inf

    @property
    def retry_at(self) -> float:
        """When an open breaker becomes half-open; infinity while it is not open."""
        return self._retry_at if self.state is BreakerState.OPEN else math.inf

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
        self.undecided = 0
        if not self.ejected:
            self._close()

    def completed(self) -> None:
        """An answer that began was not cut off: it ended, or its client left."""
        if self.state is BreakerState.CLOSED:
            self.outcomes.answer()

    def reached(self, *, back: bool) -> None:
        """The engine answers its health check. back: the checks before failed."""
        if self.ejected:
            return  # the ejection was for its answers
        if self._unreachable:
            self._close()
        elif back and self.state is BreakerState.OPEN:
            self._half_open()

    def abandoned(self) -> None:
        """A request ended without a result, for example because its client left. Another trial is allowed."""
        self._trial = False

    def acquitted(self, now: float) -> None:
        """A request that the replica failed is the cause, and does not count as undecided any more."""
        self._trial = False
        if self.suspected and self.undecided < SUSPECT:
            self._close()
            self.acquitted_at = now

    def failed(self, now: float, *, certain: bool = False, silent: bool = False) -> None:
        """The replica did not answer. certain: no connection could be made, so the breaker opens at once.
        silent: no first byte came in time. The request may be the cause, so `outcomes` does not count it."""
        self._failures += 1
        self._trial = self.suspected = False
        self._unreachable = certain and not self.ejected
        if self.state is BreakerState.CLOSED:
            if not (certain or silent):
                self.outcomes.failure()
            if certain or self._failures >= self._config.failures:
                self._open(now)
        elif self.state is BreakerState.HALF_OPEN:
            self._failed_trials += 1
            self._open(now)

    def suspect(self, now: float) -> None:
        """Opens the closed breaker of a replica that answers nothing, and whose requests do not fail elsewhere."""
        self._unreachable, self.suspected = False, True
        self._open(now)

    def eject(self, now: float) -> None:
        """Opens the closed breaker of a replica that fails more often than the others."""
        if now - self._ejected_until > LONGEST_EJECTION:
            self._ejections = 0
        self._ejections += 1
        self._ejected_until = now + delay(self._ejections, EJECTION, LONGEST_EJECTION)
        self.ejected, self._unreachable = True, False
        self._open_until(self._ejected_until)

    def readmit(self) -> None:
        """Ends an ejection early, because no other replica is available."""
        if self.ejected:
            self._close()

    def _close(self) -> None:
        self._failures = 0
        self._trial = self._unreachable = self.ejected = self.suspected = False
        self._failed_trials = 0
        self.state = BreakerState.CLOSED

    def _half_open(self) -> None:
        self.state = BreakerState.HALF_OPEN
        self._trial = self.ejected = False

    def _open(self, now: float) -> None:
        self._open_until(now + delay(self._failed_trials + 1, self._config.base, self._config.cap))

    def _open_until(self, time: float) -> None:
        self.state = BreakerState.OPEN
        self._retry_at = time
        self.opened += 1
        self.outcomes.clear()  # of another time, when it closes again
