"""What a proxy reports about the answer of a chosen replica, for the account of the decision.

The proxy sends the request and carries the answer, so the picker sees both only in passing. As in `proxy/attempt.py`,
the policy learns the time to the first body byte, the whole time and the token counts. The breaker learns of failures.
Counts are only there where the client asked for them, because bodies pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plumage_router.clock import monotonic
from plumage_router.fleet.breaker import BreakerState
from plumage_router.fleet.replicas import Replica
from plumage_router.http.paths import RESPONSES_PATH
from plumage_router.proxy.attempt import Outcome, end_account
from plumage_router.proxy.pool_state import PoolState
from plumage_router.request.usage import JsonTail, StreamFilter, Usage, WantedUsage
from plumage_router.routing.decider import Decision

__all__ = ["PickedAttempt"]

_EVENTS: Final = b"text/event-stream"
_BUSY: Final = 503  # the engine did not take the request. Envoy answers the same where it reaches no engine
_FROM_UPSTREAM: Final = b"x-envoy-upstream-service-time"  # Envoy adds it to what an engine answered


class PickedAttempt:
    """The account of one decision; closed once, by `finish`, `fail` or `abandon`.

    `status`: of the answer; 0 before it. `streams`: the answer is a stream. `first_at`: when its first body byte came.
    `last_at`: of the latest byte, in seconds of the router's clock. `over`: the account is closed.
    """

    __slots__ = (
        "_pool",
        "_reader",
        "decision",
        "first_at",
        "last_at",
        "over",
        "replica",
        "sent_at",
        "status",
        "streamed",
        "streams",
    )

    def __init__(self, pool: PoolState, decision: Decision, replica: Replica) -> None:
        self._pool = pool
        self._reader: StreamFilter | JsonTail | None = None
        self.decision = decision
        self.replica = replica
        self.sent_at = decision.ticket.routed_at
        self.status = 0
        self.streams = False
        self.first_at: float | None = None
        self.last_at = self.sent_at
        self.streamed = 0  # events
        self.over = False
        replica.totals.routed += 1
        if replica.breaker.state is BreakerState.HALF_OPEN:
            replica.breaker.started()
            pool.fleet.changed()

    @property
    def usage(self) -> Usage:
        return Usage() if self._reader is None else self._reader.usage

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Takes the answer's head. A 5xx status closes the account: the replica failed, is busy or was not reached."""
        self.status = status
        if status >= 500:
            busy = status == _BUSY and _FROM_UPSTREAM in headers
            poisoned = not busy and self._pool.quarantine.failed(self.decision.prompt, self.replica.id, monotonic())
            self.fail(counts=not busy and not poisoned)
            return
        self.streams = headers.get(b"content-type", b"").startswith(_EVENTS)
        if self.streams:
            self._reader = StreamFilter(WantedUsage.EVERY, named=self.decision.prompt.path == RESPONSES_PATH)
        else:
            self._reader = JsonTail()

    def body(self, data: bytes) -> bool:
        """A part of the answer passed. Returns True for the first that has more than comments in it."""
        if self.over or self._reader is None or not data:
            return False
        self.last_at = now = monotonic()
        self.streamed += data.count(b"data: ")
        if not self._reader.feed(data) or self.first_at is not None:
            return False
        self._begin(now)
        return True

    def finish(self) -> bool:
        """The answer is complete. Returns False if the account was closed before."""
        if self.over or self._reader is None:
            return False
        self._reader.end()
        self.last_at = monotonic()
        if self.first_at is None:
            self._begin(self.last_at)
        self._end(Outcome.FINISHED)
        return True

    def fail(self, *, counts: bool = True, silent: bool = False) -> None:
        """Ends the account of a failed replica. counts: its breaker counts it. silent: it sent nothing in time."""
        if self.over:
            return
        breaker = self.replica.breaker
        if counts and not self.replica.leaving:
            breaker.failed(monotonic(), silent=silent and self.first_at is None)
        else:
            breaker.abandoned()
        self._pool.fleet.changed()
        self._end(Outcome.FAILED)

    def abandon(self) -> None:
        """Nobody waits for the answer any more, or another replica gave it."""
        if self.over:
            return
        self.replica.breaker.abandoned()
        if self.replica.breaker.state is not BreakerState.CLOSED:
            self._pool.fleet.changed()
        self._end(Outcome.ABANDONED)

    def _begin(self, now: float) -> None:
        self.first_at = now
        breaker = self.replica.breaker
        if breaker.state is not BreakerState.CLOSED:
            self._pool.fleet.changed()
        if self.decision.prompt.uses_device:
            breaker.succeeded()
        else:  # it says nothing about the replica
            breaker.abandoned()
        if self.streams:
            self._pool.decider.first_token(self.decision, now)

    def _end(self, outcome: Outcome) -> None:
        self.over = True
        end_account(
            self._pool, self.decision, self.replica, outcome, status=self.status, usage=self.usage,
            sent_at=self.sent_at, first_at=self.first_at, last_at=self.last_at, streams=self.streams,
        )  # fmt: skip
