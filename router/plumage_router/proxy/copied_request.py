"""A copy of a request, for a pool whose answers nobody gets (a gateway's `requestMirror`).

It passes the steps of `RoutedRequest` in its own pool, whose policy chooses the replica and learns from the answer. It
differs from a client's request. It takes nothing from a quota and counts for no tenant. It waits for no replica that is
not there, and is never sent twice. The answer is read, counted and discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from plumage_router.clock import monotonic
from plumage_router.fleet.replicas import Load, Replica
from plumage_router.http.errors import Failure, RequestError, engines_silent, internal, upstream_failed
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import Steps, TimeSlicer
from plumage_router.http.wire import header_lines
from plumage_router.proxy.attempt import Attempt, Cause
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.proxied_request import FAILED, FINISHED, Only, Progress, RoutedRequest, progress_of
from plumage_router.proxy.quotas import Spending
from plumage_router.request.prompt import Prompt

if TYPE_CHECKING:  # a slow import, which few pools need
    from plumage_router.proxy.tracing import RequestTrace

__all__ = ["CopiedRequest", "CopyOutcome"]

log = logging.getLogger(__name__)

MARK: Final = b"x-plumage-copy: true\r\n"
"""Marks a copy for people who read an engine's traffic. Engines ignore it."""
_FORWARDED: Final = frozenset((b"accept",))  # the trace context of the client belongs to its own request


class CopyOutcome(StrEnum):
    """What became of a copy. The value is a metric label."""

    COMPLETE = "complete"  # the answer came, to its end
    REFUSED = "refused"  # 4xx of the engine, or of the router's checks for this pool
    FAILED = "failed"  # the engine failed, or was not reached
    TIMEOUT = "timeout"  # the answer did not begin, continue or end in time
    NO_REPLICA = "no_replica"  # the pool had none that could take it
    FULL = "full"  # dropped: too many copies are in flight, or the pool takes no more requests
    MEMORY = "memory"  # dropped: bodies of clients' requests need the memory
    CANCELED = "canceled"  # the router ends, or its pool is not served any more


class CopiedRequest(RoutedRequest):
    """`start()` once; then it ends by itself, or by `cancel`. It is the `AttemptOwner` of its only attempt.

    request: has a body of its own. request_id: that of the client's request. original: its trace, if it has one.
    slicer: runs the reading of copies.
    ended: called once, with the outcome. freed: called once no replica needs the body any more.
    """

    __slots__ = (
        "_attempt",
        "_ended",
        "_events",
        "_freed",
        "_last_byte_at",
        "_original",
        "_over",
        "_slicer",
        "_status",
        "_trace",
    )

    def __init__(
        self,
        pool: PoolState,
        request: Request,
        request_id: str,
        *,
        original: RequestTrace | None,
        slicer: TimeSlicer,
        ended: Callable[[CopiedRequest, CopyOutcome], None],
        freed: Callable[[], None],
    ) -> None:
        super().__init__(pool, request)
        self._request_id = request_id
        self._original = original
        self._slicer = slicer
        self._ended = ended
        self._freed = freed
        self._attempt: Attempt | None = None
        self._trace: RequestTrace | None = None
        self._events = 0
        self._status = 0
        self._over = False
        self._last_byte_at = self.arrived

    def start(self) -> None:
        if self._over:
            return
        pool = self._pool
        pool.metrics.requests += 1
        try:
            if pool.tracing.current is not None and self._original is not None:
                path = self._request.target.partition(b"?")[0].decode("ascii", "replace")
                self._trace = pool.tracing.current.begin_copy(self._original, path, pool.config.pool)
            self._read()
        except RequestError as error:
            self._fail(error)
        except Exception:
            log.exception("copy of request %s: reading it failed", self._request_id)
            self._fail(internal())

    def cancel(self, outcome: CopyOutcome) -> None:
        """Drops the copy. The engine stops when the connection closes."""
        self._end("Aborted", outcome)

    # -- for the pool's tick ------------------------------------------------------------------------------------------

    @property
    def replica(self) -> Replica | None:
        """The replica that has the copy now."""
        return self._attempt.replica if self._attempt is not None else None

    @property
    def answering(self) -> bool:
        """Whether the answer's first body byte came."""
        return self._attempt is not None and self._attempt.started

    def expire(self) -> None:
        self._time_out()

    def leave_silent_replica(self) -> None:
        if self._attempt is not None:
            self._attempt.leave_silent_replica()

    def check_timeouts(self, now: float) -> None:
        if self._attempt is not None:
            self._attempt.check_timeouts(now, self._last_byte_at)

    # -- for the attempt ----------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, status: int, headers: dict[bytes, bytes], data: bytes) -> None:
        pool, prompt = self._pool, attempt.decision.prompt
        self._status = status
        self._last_byte_at = attempt.first_at
        if self._trace is not None:
            self._trace.first_byte(status, streams=attempt.streams)
        pool.metrics.responses[status] += 1
        self._events += data.count(b"data: ")
        self._note_first_byte(prompt, attempt.first_at, streams=attempt.streams)
        prompt.forget(pool.quarantine.seed)
        self._free_body()

    def more(self, data: bytes) -> None:
        self._last_byte_at = self._pool.tick
        self._events += data.count(b"data: ")

    def complete(self, attempt: Attempt, data: bytes) -> None:
        self._events += data.count(b"data: ")
        self._note_answer(attempt.decision.prompt, attempt.reader.usage, attempt.last_at)
        self._end(FINISHED, CopyOutcome.REFUSED if self._status >= 400 else CopyOutcome.COMPLETE)

    def attempt_failed(self, attempt: Attempt, failure: Failure, cause: Cause) -> None:
        pool = self._pool
        if self._trace is not None:
            self._trace.failed(failure)
        if not attempt.charged:  # one failure points to the replica, as one of a client's request does
            attempt.replica.breaker.failed(monotonic())
            pool.fleet.changed()
        if cause is Cause.UNKNOWN:
            pool.quarantine.failed(attempt.decision.prompt, attempt.replica.id, monotonic())
        outcome = CopyOutcome.TIMEOUT if cause is Cause.SILENT else CopyOutcome.FAILED
        if attempt.started:
            pool.metrics.truncated += 1
            self._end("Truncated", outcome)
        else:
            error = engines_silent if cause is Cause.SILENT else upstream_failed
            self._lose(error(failure, 1), outcome)

    # -- the steps of a request ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads also a small body in slices: answers pass between two slices."""
        request, steps = self._request, self._admit()
        self._pool.in_flight.add(self)
        self._reading = self._slicer.add(request.size, steps, self._read_done, tenant=request.sender)

    def _admit(self) -> Steps[Prompt]:
        """Checks the load only: the client was authenticated for its own request."""
        pool, request = self._pool, self._request
        self._check_load()
        salt = pool.engines.salts.of(request.tenant) if pool.auth.enabled else ""
        return pool.reader.steps_of(request, salt=salt, tenant=pool.auth.enabled)

    def _spend(self, prompt: Prompt, expected: int) -> Spending | None:
        """Takes nothing: only the client's own request counts in a quota."""
        return None

    def _count_tokens(self, outcome: str, progress: Progress | None) -> None:
        """Counts nothing: a copy does not belong to the usage of its tenant."""
        return

    def _available(self, now: float, only: Only | None) -> Sequence[Load]:
        return self._pool.fleet.candidates(now, only=only)

    def _may_wait(self, now: float) -> bool:
        """Returns False: a copy wakes no pool that scaled to zero."""
        return False

    def _send_to(self, candidates: Sequence[Load], now: float) -> None:
        pool, prompt = self._pool, self._prompt
        assert prompt is not None
        decision = pool.decider.decide(prompt, candidates, now)
        replica = pool.fleet.at(decision.ticket.slot)
        trace = b""
        if self._trace is not None:
            waited = now - self._routable_at
            parent = self._trace.attempt(decision, replica, policy=pool.decider.policy.name, waited=waited)
            trace = b"traceparent: %b\r\n" % parent
        others = header_lines(_FORWARDED, self._request.headers)
        lines = b"x-request-id: %b\r\n%b%b%b" % (self._request_id.encode(), MARK, others, trace)
        attempt = self._attempt = Attempt(pool, self, decision, replica, lines)
        self._note_decision(decision, now)
        attempt.start()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _fail(self, error: RequestError) -> None:
        if error.status == 504:
            outcome = CopyOutcome.TIMEOUT
        elif error.status < 500 and error.status != 429:
            outcome = CopyOutcome.REFUSED
        elif error.code == "no_replica":
            outcome = CopyOutcome.NO_REPLICA
        else:
            outcome = CopyOutcome.FULL if error.status in (429, 503) else CopyOutcome.FAILED
        self._lose(error, outcome)

    def _time_out(self) -> None:
        if self.answering:
            self._pool.metrics.truncated += 1
            self._end("Truncated", CopyOutcome.TIMEOUT)
        else:
            self._fail(RequestError(504, "The copy took too long.", code="timeout"))

    def _lose(self, error: RequestError, outcome: CopyOutcome) -> None:
        """Counts the error that a client would have got."""
        if not self._over:
            self._pool.count_error(error)
            self._status = error.status
            self._end(FAILED, outcome, error.code or "other")

    def _end(self, name: str, outcome: CopyOutcome, error: str | None = None) -> None:
        """Removes the copy from the pool's queues and counters, once. name: of the outcome in the record."""
        if self._over:
            return
        self._over = True
        attempt = self._attempt
        progress = None
        if attempt is not None and self._record is not None:
            progress = progress_of(attempt, self._status, self._events, complete=name == FINISHED)
        self._close_account(name, progress)
        self._attempt = None
        if attempt is not None and name != FINISHED:
            attempt.abandon()
        if self._trace is not None:
            tenant = self._tenant_name
            self._trace.end(self._status, name, error, self._record, request_id=self._request_id, tenant=tenant)
            self._trace = None
        self._free_body()
        self._ended(self, outcome)

    def _free_body(self) -> None:
        self._request.body.clear()
        self._freed()
