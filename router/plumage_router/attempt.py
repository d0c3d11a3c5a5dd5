"""One try of a request on one replica: its connection, its clock, its account.

Status and headers are held until the first body byte that is no comment. Until then a failure costs the client nothing,
and the exchange may try another replica; from then on bytes pass through and a failure ends the answer.
A kept connection that the engine closed in the same moment says nothing about the engine: a fresh one is tried, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from plumage_router.clock import monotonic
from plumage_router.decide import Decider, Decision
from plumage_router.metrics import Metrics
from plumage_router.replicas import Fleet, Replica
from plumage_router.upstream import LOST, UpstreamConnection
from plumage_router.usage import JsonTail, StreamFilter

__all__ = ["Attempt", "Cause", "Course"]

_EVENTS = b"text/event-stream"
_MOST_KEYS: Final = 3  # tried on one engine for one request


class Cause(Enum):
    """Whose failure it may be."""

    REPLICA = "replica"  # it could not be reached, or refuses the router's key: the request is not to blame
    BUSY = "busy"  # 503: it took no request at all
    DOUBT = "doubt"  # it was sent the request, then lost the connection or answered 5xx
    SILENT = "silent"  # it was sent the request, then nothing came


class _Outcome(Enum):
    FINISHED = "finished"
    FAILED = "failed"
    ABANDONED = "abandoned"


class Course(Protocol):
    """The exchange that an attempt belongs to."""

    decider: Decider
    fleet: Fleet
    metrics: Metrics

    def request_for(self, replica: Replica) -> tuple[bytes, bytes]:
        """Head and body to send."""
        ...

    def key_of(self, replica: Replica) -> bytes | None:
        """The key that `request_for` sends."""
        ...

    def other_key(self, replica: Replica, tried: Sequence[bytes]) -> bool:
        """The engine took none of `tried`: whether `request_for` has another one."""
        ...

    def begin(self, attempt: Attempt, status: int, headers: dict[bytes, bytes], data: bytes) -> None:
        """The first body bytes, with what came before them."""
        ...

    def more(self, data: bytes) -> None: ...

    def complete(self, attempt: Attempt) -> None: ...

    def attempt_failed(self, attempt: Attempt, reason: str, cause: Cause) -> None:
        """Unless `attempt.charged`, the replica's breaker does not know of it yet: the exchange tells it, once it is
        clear whether the request is the cause."""
        ...


class Attempt:
    """A `Receiver` of one upstream connection. Ends in `complete` or `attempt_failed`, unless it was abandoned.
    `charged`: the replica's breaker counted its failure."""

    __slots__ = (
        "_connection",
        "_course",
        "_fresh",
        "_headers",
        "_key",
        "_over",
        "_paused",
        "_reader",
        "_refused",
        "_status",
        "charged",
        "decision",
        "first_at",
        "last_at",
        "replica",
        "sent_at",
        "started",
    )

    def __init__(self, course: Course, decision: Decision, replica: Replica) -> None:
        self._course = course
        self._connection: UpstreamConnection | None = None
        self._reader: StreamFilter | JsonTail | None = None
        self._headers: dict[bytes, bytes] = {}
        self._status = 0
        self._key: bytes | None = None
        self._refused: list[bytes] = []
        self._fresh = False
        self._over = False
        self._paused = False
        self.charged = False
        self.decision = decision
        self.replica = replica
        self.started = False
        self.sent_at = decision.ticket.routed_at
        self.first_at = 0.0
        self.last_at = 0.0

    def start(self) -> None:
        self.replica.breaker.started()
        self.replica.totals.routed += 1
        self.replica.pool.send(self)

    @property
    def streams(self) -> bool:
        """Is its first byte that of a first token? Known from the answer's head on."""
        return isinstance(self._reader, StreamFilter)

    @property
    def usage(self) -> JsonTail | StreamFilter:
        assert self._reader is not None
        return self._reader

    def pause(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def abandon(self) -> None:
        """Nobody wants the answer any more, which is no fault of the replica: its engine is told by the closed
        connection, the policy that nothing was learned."""
        if not self._over:
            self.replica.breaker.abandoned()
            self._end(_Outcome.ABANDONED)

    def give_up(self, reason: str) -> None:
        """Somebody else knows that this will not end well (a stalled engine, a deadline)."""
        self._fail(reason, Cause.SILENT)

    # -- the connection's side ----------------------------------------------------------------------------------------

    def connected(self, connection: UpstreamConnection) -> None:
        if self._over:
            self.replica.pool.release(connection)
            return
        self._connection = connection
        self._key = self._course.key_of(self.replica)
        head, body = self._course.request_for(self.replica)
        connection.send(self, head, body)

    def unreachable(self, reason: str) -> None:
        if self._fresh:  # a kept connection took the request and broke, and now nobody listens: the engine died of it
            self._fail(LOST, Cause.DOUBT, certain=True)
        else:
            self._fail(reason, Cause.REPLICA, certain=True)

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status >= 500:
            self._fail(f"it answered {status}", Cause.BUSY if status == 503 else Cause.DOUBT)
        elif status == 401 and self._tries_other_key():
            return
        elif status in (401, 403):
            self._fail("it does not accept this router's key", Cause.REPLICA)
        else:
            self._status, self._headers = status, headers
            events = headers.get(b"content-type", b"").startswith(_EVENTS)
            self._reader = StreamFilter(self.decision.prompt.wanted_usage) if events else JsonTail()

    def body(self, data: bytes) -> None:
        if self._over:
            return
        assert self._reader is not None
        data = self._reader.feed(data)
        if data:
            self._pass_on(data)

    def answered(self) -> None:
        if self._over:
            return
        assert self._reader is not None
        rest = self._reader.end()
        if rest or not self.started:
            self._pass_on(rest)
        self._connection = None
        self.last_at = monotonic()
        self._end(_Outcome.FINISHED)
        self._course.complete(self)

    def lost(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.reused and not connection.heard and not self._fresh:
            self._fresh = True
            self.replica.pool.send(self, fresh=True)
            return
        self._fail(reason, Cause.DOUBT)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _tries_other_key(self) -> bool:
        """An engine that refuses its key may have another one, while keys are changed: whether that one is tried."""
        if self._key is None or len(self._refused) + 1 >= _MOST_KEYS:
            return False
        self._refused.append(self._key)
        if not self._course.other_key(self.replica, self._refused):
            return False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        self.replica.pool.send(self, fresh=True)
        return True

    def _pass_on(self, data: bytes) -> None:
        if self.started:
            self._course.more(data)
            return
        self.started = True
        self.first_at = monotonic()
        self.replica.breaker.succeeded()
        if self.streams:
            self._course.decider.first_token(self.decision, self.first_at)
        self._course.begin(self, self._status, self._headers, data)

    def _fail(self, reason: str, cause: Cause, *, certain: bool = False) -> None:
        if self._over:
            return
        if cause is Cause.DOUBT and self.replica.leaving:
            cause = Cause.REPLICA
        if certain or self.started or cause in (Cause.REPLICA, Cause.SILENT):
            self.charged = True
            self.replica.breaker.failed(monotonic(), certain=certain)
            self._course.fleet.changed()
        self._end(_Outcome.FAILED)
        self._course.attempt_failed(self, reason, cause)

    def _end(self, outcome: _Outcome) -> None:
        """Settles the account, once."""
        self._over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        now, decider, totals = monotonic(), self._course.decider, self.replica.totals
        if outcome is _Outcome.FINISHED:
            assert self._reader is not None
            totals.finished += 1
            if self._status < 400:
                decider.finished(self.decision, now, self._reader.usage)
            else:  # an engine refuses at once: that says nothing of its speed
                decider.failed(self.decision, now)
        else:
            totals.failed += outcome is _Outcome.FAILED
            totals.abandoned += outcome is _Outcome.ABANDONED
            decider.failed(self.decision, now, computed=self.started)
        self._course.fleet.release(self.replica)
