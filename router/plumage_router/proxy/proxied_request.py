"""One completion request, from its last byte in to its last byte out.

authenticate → read → choose a replica → send. If the attempt fails before the first body byte, another replica is
chosen. Each attempt on a replica is an `Attempt`; `Retries` decides whether another one follows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from plumage_router.clock import monotonic
from plumage_router.fleet.replicas import Load, Replica
from plumage_router.http.downstream import DownstreamConnection, EngineAnswer
from plumage_router.http.errors import Failure, RequestError, internal, upstream_failed
from plumage_router.http.paths import response_call
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import Steps
from plumage_router.http.wire import chunk, header_lines
from plumage_router.proxy.attempt import Attempt, Cause
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.retries import Retries
from plumage_router.proxy.routed_request import FAILED, FINISHED, Only, Progress, RoutedRequest
from plumage_router.request.prompt import Prompt
from plumage_router.request.usage import Usage
from plumage_router.routing.audit import Record
from plumage_router.routing.decider import Decision

if TYPE_CHECKING:  # a slow import, which few pools need
    from plumage_router.proxy.tracing import RequestTrace

__all__ = ["ProxiedRequest"]

log = logging.getLogger(__name__)

_CLIENT_LEFT: Final = 499  # only in the access log: the client left before an answer began (nginx' number)
_FORWARDED: Final = frozenset((b"traceparent", b"tracestate", b"accept"))
_OF_A_NEW_TRACE: Final = _FORWARDED - {b"traceparent", b"tracestate"}
_OF_THE_CLIENTS_TRACE: Final = _FORWARDED - {b"traceparent"}  # the attempt has its own


class ProxiedRequest(RoutedRequest):
    """A `Handler` of one client connection, and the `AttemptOwner` of its attempts."""

    __slots__ = ("_answer", "_attempt", "_last_byte_at", "_paused", "_retries", "_streamed", "_trace")

    def __init__(self, pool: PoolState, request: Request, client: DownstreamConnection) -> None:
        super().__init__(pool, request)
        self._answer = EngineAnswer(client, request)
        self._retries: Retries | None = None  # once an attempt has failed
        self._attempt: Attempt | None = None
        self._streamed = 0  # events of the answer
        self._trace: RequestTrace | None = None
        self._paused = False
        self._last_byte_at = self.arrived

    @property
    def replica(self) -> Replica | None:
        """The replica that has the request now."""
        return self._attempt.replica if self._attempt is not None else None

    @property
    def answering(self) -> bool:
        """Whether the client got its first byte."""
        return self._attempt is not None and self._attempt.started

    # -- for the client's connection ----------------------------------------------------------------------------------

    def start(self) -> None:
        pool = self._pool
        pool.metrics.requests += 1
        try:
            self._request_id = pool.request_id(self._request)
            self._read()
        except RequestError as error:
            self._refuse(error)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._refuse(internal())

    def pause(self) -> None:
        self._paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        self._paused = False
        if self._attempt is not None:
            self._attempt.resume()

    def abort(self) -> None:
        if self._retries is not None:  # nothing points to the replicas
            self._retries.settle(self._pool.fleet, monotonic(), request_is_cause=True)
        self._pool.metrics.aborted += 1
        self._end("Aborted")

    # -- for the pool's tick ------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The request took longer than any request may."""
        if self.answering:
            self._truncate("the request took too long")
        else:
            self._fail(RequestError(504, "The request took too long.", code="timeout"))

    def leave_silent_replica(self) -> None:
        """The replica will send no first byte: the request is tried on another one."""
        attempt = self._attempt
        if attempt is not None:
            stalled = attempt.replica.stalled
            attempt.give_up(Failure.ENGINE_STALLED if stalled else Failure.HEALTH_CHECK_FAILED)

    def check_timeouts(self, now: float) -> None:
        """A stream must begin and continue in time. While the client does not read, the engine is not to blame."""
        attempt, timeouts = self._attempt, self._pool.timeouts
        if attempt is None or self._paused:
            self._last_byte_at = now
        elif attempt.decision.prompt.of_response:
            self._check_stored(attempt, now)
        elif attempt.started:
            if self._answer.events and now - self._last_byte_at > timeouts.idle:
                attempt.give_up(Failure.STREAM_TIMEOUT)
        elif attempt.decision.prompt.stream and now - attempt.sent_at > timeouts.first_byte:
            attempt.give_up(Failure.FIRST_BYTE_TIMEOUT)

    def _check_stored(self, attempt: Attempt, now: float) -> None:
        """vLLM ends the stream of a stored response only if that completes, so silence is not the replica's failure."""
        if attempt.started and self._answer.events and now - self._last_byte_at > self._pool.timeouts.idle:
            self._truncate("the stored response sent nothing more")
        elif not attempt.started and now - attempt.sent_at > self._pool.timeouts.first_byte:
            self._fail(RequestError(504, "The stored response sent nothing in time.", code="timeout"))

    # -- for the attempts ---------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, status: int, headers: dict[bytes, bytes], data: bytes) -> None:
        pool, answer = self._pool, self._answer
        self._last_byte_at = attempt.first_at
        if self._retries is not None:
            self._retries.settle(pool.fleet, attempt.first_at, request_is_cause=False)
        extra = b""
        if self._explain and self._record is not None:
            extra = b"x-plumage-explain: %b\r\n" % json.dumps(self._record.document(), separators=(",", ":")).encode()
        answer.keep_alive = answer.keep_alive and pool.keeps_alive
        if self._trace is not None:
            self._trace.first_byte(status, streams=attempt.streams)
        answer.begin(status, headers, data, date=pool.date, request_id=self._request_id, extra=extra)
        pool.metrics.responses[status] += 1
        self._streamed += data.count(b"data: ")
        prompt = attempt.decision.prompt
        self._note_first_byte(prompt, attempt.first_at, streams=attempt.streams)
        answer.client.free_body()
        pool.free(prompt)

    def more(self, data: bytes) -> None:
        answer = self._answer
        self._last_byte_at = self._pool.tick
        self._streamed += data.count(b"data: ")
        answer.client.transport.write(chunk(data) if answer.chunked else data)

    def complete(self, attempt: Attempt) -> None:
        self._note_answer(attempt.decision.prompt, attempt.reader.usage, attempt.last_at)
        self._end(FINISHED)
        self._answer.end()

    def attempt_failed(self, attempt: Attempt, failure: Failure, cause: Cause) -> None:
        pool = self._pool
        if self._retries is None:
            self._retries = Retries()
            if self._record is not None:
                self._record.failures = self._retries.failures
        retries = self._retries
        now = self._routable_at = monotonic()
        retries.add(attempt, failure, cause, pool.retry_budget, now)
        if self._trace is not None:
            self._trace.failed(failure)
        quarantined = cause is Cause.UNKNOWN and pool.strike(attempt.decision.prompt, attempt.replica)
        if attempt.started:
            self._truncate(failure.text)
            return
        error = retries.give_up(failure, cause, pool.limits, pool.fleet, now, quarantined=quarantined)
        if error is not None:
            self._fail(error)
        else:
            self._route()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _admit(self) -> Steps[Prompt]:
        pool, request = self._pool, self._request
        pool.authenticate(request)
        if pool.tracing.current is not None:
            self._trace = pool.tracing.current.begin(request, pool.config.pool)
        self._explain = pool.wants_explanation(request)
        pool.check_load()
        salt = pool.salt_of(request.tenant)
        call = None if request.reservation is not None else response_call(request.method, request.target)
        if call is not None:
            return pool.reader.response_steps(call, salt=salt)
        pool.check_quota(request.tenant)
        boundary = pool.check_media_type(request)
        parsed, request.parsed = request.parsed, None
        path = request.target.partition(b"?")[0]
        if boundary:
            return pool.reader.form_steps(path, request.body, boundary, parsed)
        return pool.reader.steps(path, request.body, parsed, salt=salt, tenant=pool.auth.enabled)

    def _available(self, now: float, only: Only | None) -> Sequence[Load]:
        """Those on which the request was not tried."""
        return self._pool.fleet.candidates(now, self._retries.tried if self._retries is not None else (), only)

    def _send_to(self, candidates: Sequence[Load], now: float) -> None:
        """Starts an attempt."""
        pool, prompt, retries = self._pool, self._prompt, self._retries
        assert prompt is not None
        if retries is None:
            pool.retry_budget.sent(now)
        else:
            retries.take_budget(pool.retry_budget, pool.fleet, now)
            pool.metrics.retries[retries.failures[-1][1]] += 1
        decision = pool.decider.decide(prompt, candidates, now, 1 if retries is None else len(retries.failures) + 1)
        replica = pool.fleet.at(decision.ticket.slot)
        attempt = self._attempt = Attempt(pool, self, decision, replica, self._lines(decision, replica, now))
        record = self._note_decision(decision, now)
        if retries is not None:
            record.failures = retries.failures
        attempt.start()

    def _lines(self, decision: Decision, replica: Replica, now: float) -> bytes:
        """The request's own header lines for an engine."""
        forwarded, trace = _FORWARDED, b""
        if self._trace is not None:
            forwarded = _OF_THE_CLIENTS_TRACE if self._trace.continues else _OF_A_NEW_TRACE
            waited = now - self._routable_at
            trace = self._trace.attempt(decision, replica, policy=self._pool.policy.name, waited=waited)
        others = header_lines(forwarded, self._request.headers)
        return b"x-request-id: %b\r\n%b%b" % (self._request_id.encode(), others, trace)

    def _without_replica(self, now: float) -> None:
        super()._without_replica(now)
        self._attempt = None  # the request waits

    def _may_wait(self, now: float) -> bool:
        """Not if an available replica has failed on the request."""
        if self._prompt is not None and self._prompt.previous is not None:
            return self._retries is None
        return not self._pool.fleet.candidates(now)

    def _check_failures(self, now: float) -> None:
        """No other replica could serve the request, so the breakers would not protect it. vLLM drops the connection of
        a stream that it cannot continue, so such a failure is not the replica's."""
        retries, prompt = self._retries, self._prompt
        if retries is None:
            return
        continues = prompt is not None and prompt.previous is not None and not prompt.of_response
        retries.settle(self._pool.fleet, now, request_is_cause=not continues)
        raise upstream_failed(retries.failures[-1][1], len(retries.failures))

    def _progress(self, outcome: str) -> Progress | None:
        attempt = self._attempt
        if attempt is None or self._record is None:
            return None
        complete = outcome == FINISHED and not attempt.decision.prompt.of_response
        return Progress(
            status=self._answer.status,
            began=attempt.started,
            first_at=attempt.first_at if attempt.started else None,
            streams=attempt.streams,
            events=self._streamed,
            usage=attempt.reader.usage if complete else Usage(),
            asked=True,
        )

    def _end(self, outcome: str) -> None:
        """Removes the request from the pool's books and abandons an open attempt."""
        self._close_books(outcome, self._progress(outcome))
        attempt, self._attempt = self._attempt, None
        if attempt is not None and outcome != FINISHED:
            attempt.abandon()
        if outcome != FAILED:
            self._report(self._answer.status or _CLIENT_LEFT, outcome)

    def _truncate(self, reason: str) -> None:
        """The client has a part of the answer, and the rest will not come."""
        self._pool.metrics.truncated += 1
        log.warning("request %s: answer truncated, %s", self._request_id, reason)
        self._end("Truncated")
        self._answer.truncate()

    def _fail(self, error: RequestError) -> None:
        if self._retries is not None:
            self._retries.end(self._pool.fleet, monotonic())
        self._end(FAILED)
        self._refuse(error)

    def _refuse(self, error: RequestError) -> None:
        pool, answer = self._pool, self._answer
        self._report(error.status, FAILED, error.code or "other")
        pool.count_error(error)
        keep_alive = answer.keep_alive and pool.keeps_alive
        headers = pool.error_headers(error, self._request_id)
        answer.client.respond(error.status, headers, error.body(self._request.target), keep_alive=keep_alive)

    def _report(self, status: int, outcome: str, error: str | None = None) -> None:
        """Writes the line of the access log and ends the trace, where there are such."""
        if self._trace is None and self._pool.access_log is None:
            return
        tenant, retries = self._tenant_name, self._retries
        if self._trace is not None:
            self._trace.end(status, outcome, error, self._record, request_id=self._request_id, tenant=tenant)
            self._trace = None
        if self._pool.access_log is None:
            return
        self._pool.log_access(
            self._request,
            status,
            requestId=self._request_id,
            outcome=outcome,
            error=error,
            tenant=tenant,
            failed=[replica for replica, _ in retries.failures] if retries is not None else None,
            **_access_fields(self._prompt, self._record, monotonic() - self.arrived),
        )


def _access_fields(prompt: Prompt | None, record: Record | None, seconds: float) -> dict[str, Any]:
    """The fields of an access log line that describe prompt, replica and answer. seconds: the request's duration."""
    fields: dict[str, Any] = {"seconds": round(seconds, 6)}
    if prompt is not None:
        fields |= {"model": prompt.model, "stream": prompt.stream}
    if record is not None:
        fields |= {
            "replica": record.replica,
            "waitedSeconds": round(record.waited_seconds, 6),
            "ttftSeconds": round(record.ttft, 6) if record.ttft is not None else None,
            "promptTokens": record.prompt_tokens,
            "cachedTokens": record.cached_tokens,
            "outputTokens": record.output_tokens,
        }
    return fields
