"""Decides whether a failed request is tried on another replica, and whose failure it was.

- Without a first byte, a request may be tried on other replicas: `max_attempts` in all.
- A replica that answered 503 did not take the request (`Cause.BUSY`). Only `max_attempts` bounds such failures.
- A request that replicas got and failed on may be the cause (`Cause.UNKNOWN`, `Cause.SILENT`). It goes to
  `max_failed_replicas` of them at most.
- A breaker counts such a failure only once the request is known not to be the cause.
- A retry takes from the pool's `RetryBudget`. Without budget the request fails, and whose failure it was stays unknown.

Three kinds of retries take no budget, since they multiply no load. An engine that could not be reached got nothing, and
its breaker opens at once. A replica that fails all of its requests at once (a burst) fails each of them once. A
half-open breaker lets one request at a time pass.

`attempt.py` finds the cause from the status or the connection's failure.
"""

from __future__ import annotations

from plumage.settings.router_config import LimitsConfig
from plumage_router.fleet.breaker import Breaker
from plumage_router.fleet.replicas import Fleet, Replica
from plumage_router.http.errors import (
    Failure,
    RequestError,
    engines_failed,
    engines_silent,
    retry_budget_spent,
    upstream_failed,
)
from plumage_router.proxy.attempt import Attempt, Cause
from plumage_router.proxy.retry_budget import RetryBudget

__all__ = ["Retries"]


class Retries:
    """The failed attempts of one request. `failures`: (replica id, reason). `tried`: not to be chosen again."""

    __slots__ = ("_failed_after_send", "_takes_budget", "_uncharged", "failures", "tried")

    def __init__(self) -> None:
        self.failures: list[tuple[str, Failure]] = []
        self.tried: list[Replica] = []
        self._failed_after_send = 0
        self._takes_budget = False  # the next attempt
        self._uncharged: list[Replica] = []  # their breakers count the failure unless the request is the cause

    def add(self, attempt: Attempt, failure: Failure, cause: Cause, budget: RetryBudget, now: float) -> None:
        """Records a failed attempt."""
        self.failures.append((attempt.replica.id, failure))
        self.tried.append(attempt.replica)
        if not attempt.charged:
            self._uncharged.append(attempt.replica)
            attempt.replica.breaker.undecided += 1
        self._failed_after_send += cause in (Cause.UNKNOWN, Cause.SILENT)
        unreachable = cause is Cause.REPLICA and failure is not Failure.KEY_REFUSED  # or about to stop
        burst = budget.in_burst(attempt.replica.id, failure, attempt.sent_at, now)
        self._takes_budget = not (unreachable or attempt.trial or burst)

    def take_budget(self, budget: RetryBudget, fleet: Fleet, now: float, tenant: str | None) -> None:
        """Call before another attempt. Raises RequestError without budget for it."""
        if self._takes_budget and not budget.take(now, tenant):
            self.drop(fleet)
            raise retry_budget_spent(self.failures[-1][1], len(self.failures))
        self._takes_budget = False

    def give_up(
        self, failure: Failure, cause: Cause, limits: LimitsConfig, fleet: Fleet, now: float, *, quarantined: bool
    ) -> RequestError | None:
        """Returns the error for the client; None when the request may be tried on another replica.

        quarantined: the request's body is refused from now on.
        """
        if quarantined or self._failed_after_send >= limits.max_failed_replicas:
            self.charge(fleet, now, request_is_cause=True)
            error = engines_silent if cause is Cause.SILENT else engines_failed
            return error(failure, len(self.failures))
        if len(self.failures) >= limits.max_attempts:
            return upstream_failed(failure, len(self.failures))
        return None

    def end(self, fleet: Fleet, now: float) -> None:
        """Ends a request that fails. Several replicas that failed after they got it point to the request."""
        self.charge(fleet, now, request_is_cause=len(self._uncharged) > 1)

    def charge(self, fleet: Fleet, now: float, *, request_is_cause: bool) -> None:
        """Counts the failures in the breakers of the replicas, unless the request is the cause."""
        for breaker in self._decided(fleet):
            if request_is_cause:
                breaker.acquitted(now)
            else:
                breaker.failed(now)

    def drop(self, fleet: Fleet) -> None:
        """Leaves the cause of the failures unknown: no breaker counts them, and no suspicion ends."""
        for breaker in self._decided(fleet):
            breaker.abandoned()

    def _decided(self, fleet: Fleet) -> list[Breaker]:
        """Returns the breakers of the failures that were undecided, which are decided now."""
        breakers = [replica.breaker for replica in self._uncharged]
        self._uncharged = []
        for breaker in breakers:
            breaker.undecided = max(0, breaker.undecided - 1)
        if breakers:
            fleet.changed()
        return breakers
