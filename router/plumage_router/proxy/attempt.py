"""One attempt of a request on one replica: its connection, its times, what it costs the replica's account.

Status and headers are held back until the first body byte that is not a comment. Until then a failure costs the client
nothing, and the request may be tried on another replica. From then on bytes pass through, and a failure ends the
answer. An engine may close a kept connection at the moment of a send. That says nothing about the engine, so the
attempt sends the request again over a fresh connection, once.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from plumage.multipart import content_type
from plumage_router.clock import monotonic
from plumage_router.fleet.breaker import BreakerState
from plumage_router.fleet.replicas import Replica, Totals
from plumage_router.http.errors import TLS_FAILURES, Failure
from plumage_router.http.paths import RESPONSES_PATH
from plumage_router.http.upstream import UpstreamConnection
from plumage_router.metrics import Metrics
from plumage_router.proxy.pool_state import PoolState
from plumage_router.request.usage import JsonTail, StreamFilter, Usage
from plumage_router.routing.decider import Decision

__all__ = ["Attempt", "AttemptOwner", "Cause", "Outcome", "end_account"]

_EVENTS: Final = b"text/event-stream"
_MAX_KEYS: Final = 3  # tried on one engine for one request
_BY_STATUS: Final = {
    500: Failure.HTTP_500, 502: Failure.HTTP_502, 503: Failure.HTTP_503, 504: Failure.HTTP_504,
}  # fmt: skip


class Cause(Enum):
    """Whether the replica or the request may have caused a failure."""

    REPLICA = "replica"  # unreachable, or it refuses the router's key: the request is not the cause
    BUSY = "busy"  # 503: it did not take the request
    UNKNOWN = "unknown"  # it got the request, then lost the connection or answered 5xx
    SILENT = "silent"  # it got the request, then sent nothing


class Outcome(Enum):
    """How an attempt ended. A refusal of the engine (4xx) is a complete answer."""

    FINISHED = "finished"
    FAILED = "failed"
    ABANDONED = "abandoned"


class AttemptOwner(Protocol):
    """The request that an attempt belongs to."""

    def begin(self, attempt: Attempt, status: int, headers: dict[bytes, bytes], data: bytes) -> None:
        """Gets the first body bytes, with the head before them."""
        ...

    def more(self, data: bytes) -> None: ...

    def complete(self, attempt: Attempt, data: bytes) -> None:
        """Gets the last body bytes, perhaps none."""
        ...

    def attempt_failed(self, attempt: Attempt, failure: Failure, cause: Cause) -> None:
        """Gets the failure.

        Unless `attempt.charged`, the replica's breaker has not counted it yet. The owner reports it once it is known
        whether the request is the cause.
        """
        ...


class Attempt:
    """The `Receiver` of one upstream connection. Ends in `complete` or `attempt_failed`, unless it was abandoned.

    lines: the request's own header lines.
    `charged`: the replica's breaker has counted the failure. `trial`: it was half-open at the start.
    `started`: the first body byte came. `streams`: the answer is a stream, so its first byte is its first token.
    """

    __slots__ = (
        "_connection",
        "_fresh",
        "_headers",
        "_key",
        "_lines",
        "_over",
        "_owner",
        "_pool",
        "_refused_keys",
        "_status",
        "charged",
        "decision",
        "first_at",
        "last_at",
        "reader",
        "replica",
        "sent_at",
        "started",
        "streams",
        "trial",
    )

    reader: StreamFilter | JsonTail
    """Reads the usage in the answer; set with the head."""

    def __init__(
        self, pool: PoolState, owner: AttemptOwner, decision: Decision, replica: Replica, lines: bytes
    ) -> None:
        self._pool = pool
        self._owner = owner
        self._lines = lines
        self._connection: UpstreamConnection | None = None
        self._headers: dict[bytes, bytes] = {}
        self._status = 0
        self._key: bytes | None = None
        self._refused_keys: tuple[bytes, ...] = ()
        self._fresh = False
        self._over = False
        self.charged = False
        self.trial = False
        self.decision = decision
        self.replica = replica
        self.started = False
        self.streams = False
        self.sent_at = decision.ticket.routed_at
        self.first_at = 0.0
        self.last_at = 0.0

    def start(self) -> None:
        replica = self.replica
        self.trial = replica.breaker.state is BreakerState.HALF_OPEN
        if self.trial:
            replica.breaker.started()
            self._pool.fleet.changed()
        replica.totals.routed += 1
        connection = replica.connections.take()
        if connection is not None:
            self._send(connection)
        else:
            replica.connections.connect(self)

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def abandon(self) -> None:
        """Drops the answer without blaming the replica. The engine stops when the connection closes."""
        if not self._over:
            self.replica.breaker.abandoned()
            if self.replica.breaker.state is not BreakerState.CLOSED:
                self._pool.fleet.changed()
            self._end(Outcome.ABANDONED)

    def give_up(self, failure: Failure) -> None:
        """Ends the attempt: the owner knows that no answer will come, for example after a timeout."""
        self._fail(failure, Cause.SILENT)

    def leave_silent_replica(self) -> None:
        """Ends the attempt: the replica will send no first byte."""
        self.give_up(Failure.ENGINE_STALLED if self.replica.stalled else Failure.HEALTH_CHECK_FAILED)

    def check_timeouts(self, now: float, last_byte_at: float) -> None:
        """Ends the attempt at a stream that did not begin or continue in time."""
        timeouts = self._pool.timeouts
        if self.started:
            if self.streams and now - last_byte_at > timeouts.idle:
                self.give_up(Failure.STREAM_TIMEOUT)
        elif self.decision.prompt.stream and now - self.sent_at > timeouts.first_byte:
            self.give_up(Failure.FIRST_BYTE_TIMEOUT)

    # -- callbacks of the connection ----------------------------------------------------------------------------------

    def connected(self, connection: UpstreamConnection) -> None:
        if self._over:
            self.replica.connections.release(connection)
        else:
            self._send(connection)

    def unreachable(self, failure: Failure) -> None:
        # A kept connection took the request and broke, and now the port refuses: the engine died of it.
        if self._fresh and failure not in TLS_FAILURES:
            self._fail(Failure.CONNECTION_LOST, Cause.UNKNOWN, certain=True)
        else:
            self._fail(failure, Cause.REPLICA, certain=True)

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status >= 500:
            failure = _BY_STATUS.get(status, Failure.HTTP_5XX)
            self._fail(failure, Cause.BUSY if status == 503 else Cause.UNKNOWN)
        elif status == 401 and self._try_other_key():
            return
        elif status in (401, 403):
            self._fail(Failure.KEY_REFUSED, Cause.REPLICA)
        else:
            self._status, self._headers = status, headers
            self.streams = headers.get(b"content-type", b"").startswith(_EVENTS)
            self.reader = self._reader() if self.streams else JsonTail()

    def body(self, data: bytes) -> None:
        if self._over:
            return
        data = self.reader.feed(data)
        if data:
            if self.started:
                self._owner.more(data)
            else:
                self._begin(data)

    def answered(self, data: bytes) -> None:
        if self._over:
            return
        rest = self.reader.feed(data) + self.reader.end() if data else self.reader.end()
        if not self.started:
            self._begin(rest)
            rest = b""
        self._connection = None
        self.last_at = monotonic()
        self._end(Outcome.FINISHED)
        self._owner.complete(self, rest)

    def lost(self, failure: Failure) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.reused and not connection.heard and not self._fresh:
            self._fresh = True
            self.replica.connections.connect(self)
        elif failure is Failure.CLIENT_CERTIFICATE_REFUSED:  # it closed the connection before it read the request
            self._fail(failure, Cause.REPLICA, certain=True)
        else:
            self._fail(failure, Cause.UNKNOWN)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        prompt = self.decision.prompt
        head, self._key = self._pool.engines.head(prompt, self.replica)
        if prompt.boundary:
            head += b"content-type: %b\r\n" % content_type(prompt.boundary)
        payload = prompt.payload
        if prompt.id_salt is not None and not prompt.of_response:
            payload = self._pool.stored_responses.named(prompt, self.replica)
        connection.send(self, b"%b%bcontent-length: %d\r\n\r\n" % (head, self._lines, len(payload)), payload)

    def _reader(self) -> StreamFilter:
        prompt = self.decision.prompt
        return StreamFilter(prompt.wanted_usage, named=prompt.path.startswith(RESPONSES_PATH))

    def _try_other_key(self) -> bool:
        """Sends the request again with another engine key, if there is one. Engines may differ while keys change."""
        if self._key is None or len(self._refused_keys) + 1 >= _MAX_KEYS:
            return False
        self._refused_keys += (self._key,)
        if not self._pool.engines.use_other_key(self.replica, self._refused_keys):
            return False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        self.replica.connections.connect(self)
        return True

    def _begin(self, data: bytes) -> None:
        self.started = True
        self.first_at = monotonic()
        if self.replica.breaker.state is not BreakerState.CLOSED:
            self._pool.fleet.changed()
        if not self.decision.prompt.uses_device:  # they say nothing about the replica
            self.replica.breaker.abandoned()
        else:
            self.replica.breaker.succeeded()
        if self.streams:
            self._pool.decider.first_token(self.decision, self.first_at, learns=self.decision.prompt.measured)
        self._owner.begin(self, self._status, self._headers, data)

    def _fail(self, failure: Failure, cause: Cause, *, certain: bool = False) -> None:
        if self._over:
            return
        if cause is Cause.UNKNOWN and self.replica.leaving:
            cause = Cause.REPLICA
        if certain or self.started or cause in (Cause.REPLICA, Cause.SILENT):
            self.charged = True
            silent = cause is Cause.SILENT and not self.started
            self.replica.breaker.failed(monotonic(), certain=certain, silent=silent)
            self._pool.fleet.changed()
        self._end(Outcome.FAILED)
        self._owner.attempt_failed(self, failure, cause)

    def _end(self, outcome: Outcome) -> None:
        """Closes the account of the attempt, once."""
        self._over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        usage = self.reader.usage if outcome is Outcome.FINISHED else None
        end_account(
            self._pool, self.decision, self.replica, outcome, status=self._status, usage=usage,
            sent_at=self.sent_at, first_at=self.first_at if self.started else None, last_at=self.last_at,
            streams=self.streams,
        )  # fmt: skip


def end_account(
    pool: PoolState,
    decision: Decision,
    replica: Replica,
    outcome: Outcome,
    *,
    status: int,
    usage: Usage | None,
    sent_at: float,
    first_at: float | None,
    last_at: float,
    streams: bool,
) -> None:
    """Closes the account of a decision, once: the policy and the replica's totals learn how it ended.

    status, usage: of the answer; needed if it is complete. first_at: when its first body byte came; None before that.
    streams: that byte was the first token.
    """
    now, decider, totals, started = monotonic(), pool.decider, replica.totals, first_at is not None
    if outcome is not Outcome.FAILED and started and decision.prompt.uses_device:
        replica.breaker.completed()
    if outcome is Outcome.FINISHED:
        assert usage is not None, "a complete answer has a reader"
        totals.finished += 1
        measured = decision.prompt.measured
        if status < 400:
            decider.answered(decision, now)
        if measured:
            ttft = first_at - sent_at if streams and first_at is not None else None
            _count_answer(pool.metrics, totals, decision, usage, ttft, last_at - sent_at)
        if measured and status < 400:
            decider.finished(decision, now, usage)
        else:  # a refusal, or an answer without a generation, says nothing about the engine's speed
            decider.failed(decision, now)
    else:
        totals.failed += outcome is Outcome.FAILED
        totals.abandoned += outcome is Outcome.ABANDONED
        decider.failed(decision, now, computed=started)
    pool.fleet.release(replica)


def _count_answer(
    metrics: Metrics, totals: Totals, decision: Decision, usage: Usage, ttft: float | None, latency: float
) -> None:
    """Adds the answer's tokens and the errors of the predictions to the metrics and the replica's totals.

    ttft, latency: seconds since it was sent; no ttft of an answer that is no stream.
    """
    ticket = decision.ticket
    predicted = ticket.hit_tokens
    if ttft is not None and ticket.predicted_ttft is not None:
        metrics.ttft_error.observe(ttft - ticket.predicted_ttft)
    if ticket.predicted_latency is not None:
        metrics.latency_error.observe(latency - ticket.predicted_latency)
    metrics.predicted_hit_tokens += predicted
    totals.predicted_hit_tokens += int(predicted)
    if usage.prompt_tokens is not None:
        metrics.prompt_tokens += usage.prompt_tokens
        totals.prompt_tokens += usage.prompt_tokens
    if usage.output_tokens is not None:
        metrics.output_tokens += usage.output_tokens
        totals.output_tokens += usage.output_tokens
    if usage.cached_tokens is None:
        metrics.usage_missing += 1
        return
    metrics.actual_hit_tokens += usage.cached_tokens
    totals.hit_tokens += usage.cached_tokens
    if decision.prompt.plain:
        metrics.hit_error.observe(usage.cached_tokens - predicted)
        totals.hit_error += int(predicted) - usage.cached_tokens
        totals.compared_tokens += usage.prompt_tokens or 0
