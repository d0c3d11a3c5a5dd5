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
from plumage_router.http.errors import (
    Failure,
    RequestError,
    internal,
    no_replica,
    response_away,
    response_not_found,
    unknown_response,
    upstream_failed,
)
from plumage_router.http.paths import response_call
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import LARGE, SlicedWork, Steps, run_now
from plumage_router.http.wire import chunk, header_lines
from plumage_router.proxy.attempt import Attempt, Cause
from plumage_router.proxy.flow_control import Passage, Spent
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.quotas import Spending
from plumage_router.proxy.retries import Retries
from plumage_router.proxy.tenant_usage import TokensUsed
from plumage_router.proxy.wait_queue import no_replica_yet
from plumage_router.request.prompt import Prompt
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


class ProxiedRequest:
    """A `Handler` of one client connection, and the `AttemptOwner` of its attempts.

    `arrived`: when its last byte came, in seconds of the router's clock.
    """

    __slots__ = (
        "_answer",
        "_attempt",
        "_expected",
        "_explain",
        "_home",
        "_last_byte_at",
        "_passage",
        "_passed",
        "_paused",
        "_pool",
        "_prompt",
        "_reading",
        "_record",
        "_request",
        "_request_id",
        "_retries",
        "_routable_at",
        "_spending",
        "_streamed",
        "_trace",
        "_waited",
        "arrived",
    )

    def __init__(self, pool: PoolState, request: Request, client: DownstreamConnection) -> None:
        self._pool = pool
        self._request = request
        self._request_id = ""
        self._answer = EngineAnswer(client, request)
        self._retries: Retries | None = None  # once an attempt has failed
        self._attempt: Attempt | None = None
        self._record: Record | None = None
        self._prompt: Prompt | None = None
        self._reading: SlicedWork | None = None
        self._spending: Spending | None = None  # from the tenant's quotas
        self._streamed = 0  # events of the answer
        self._trace: RequestTrace | None = None
        self._expected = 0  # tokens of the prompt, as far as the router knows
        self._explain = False
        self._home: Replica | None = None  # stores the response that the request continues
        self._passage: Passage | None = None  # in the queue of flow control
        self._passed = False  # flow control sent it on
        self._waited = False  # in a queue
        self._paused = False
        self.arrived = self._last_byte_at = self._routable_at = monotonic()

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
            steps = self._admit()
            size = len(self._request.body)
            if size > LARGE:
                pool.in_flight.add(self)
                self._reading = pool.time_slicer.add(size, steps, self._read_done, tenant=self._request.sender)
                return
            self._accept(run_now(steps))
        except RequestError as error:
            self._refuse(error)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._refuse(internal())
        else:
            pool.in_flight.add(self)
            self._route_accepted()

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

    # -- for the wait queue -------------------------------------------------------------------------------------------

    def can_resume(self, now: float) -> bool:
        return bool(self._candidates(now))

    def resume_routing(self) -> None:
        self._route()

    def turn_away(self, error: RequestError) -> None:
        self._fail(error)

    # -- for flow control ---------------------------------------------------------------------------------------------

    def leave_queue(self) -> None:
        self._passed = True
        self._route()

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
        if attempt.streams and attempt.decision.prompt.measured:
            pool.metrics.ttft.observe(attempt.first_at - self.arrived)
        answer.client.free_body()
        pool.free(attempt.decision.prompt)

    def more(self, data: bytes) -> None:
        answer = self._answer
        self._last_byte_at = self._pool.tick
        self._streamed += data.count(b"data: ")
        answer.client.transport.write(chunk(data) if answer.chunked else data)

    def complete(self, attempt: Attempt) -> None:
        self._pool.clear_quarantine(attempt.decision.prompt)
        prompt = attempt.decision.prompt
        if prompt.measured:
            self._pool.metrics.latency.observe(attempt.last_at - self.arrived)
        record, usage = self._record, attempt.reader.usage
        assert record is not None
        if not prompt.of_response:  # its tokens were those of the request that made the response
            record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            record.output_tokens = usage.output_tokens
        self._end("Finished")
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
        """Checks the client and the router's load. Returns the steps that read the body."""
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

    def _read_done(self, prompt: Prompt | None, error: Exception | None) -> None:
        """The body was read in slices."""
        self._reading = None
        try:
            if error is not None:
                raise error
            assert prompt is not None
            self._accept(prompt)
        except RequestError as wrong:
            self._pool.in_flight.discard(self)
            self._refuse(wrong)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._pool.in_flight.discard(self)
            self._refuse(internal())
        else:
            self._route_accepted()

    def _accept(self, prompt: Prompt) -> None:
        """The body was read. Raises RequestError if it is quarantined, or over its tenant's quota."""
        self._prompt = prompt
        self._pool.check_quarantine(prompt)
        self._expected = expected = self._pool.tokens_of_prompt(prompt)  # while its text is there
        self._passage = self._pool.classify(self._request, prompt, expected)
        self._spending = self._pool.spend(prompt, self._request.tenant, expected, self._quota_decided)

    def _route_accepted(self) -> None:
        if self._spending is None or not self._spending.waits:
            self._route()

    def _quota_decided(self, error: RequestError | None) -> None:
        """The other routers' numbers came, or are not needed any more."""
        if error is not None:
            self._fail(error)
        else:
            self._routable_at = monotonic()
            self._route()

    def _route(self) -> None:
        """Chooses a replica and starts an attempt there."""
        try:
            now = monotonic()
            candidates = self._candidates(now)
            if not candidates:
                self._without_replica(now)
            elif self._passage is None:
                self._attempt_on(candidates, now)
            elif (roomy := self._with_room(self._passage, candidates, now)) is not None:
                self._attempt_on(roomy, now)
        except RequestError as error:
            self._fail(error)
        except Exception:
            log.exception("request %s: routing it failed", self._request_id)
            self._fail(internal())

    def _with_room(self, passage: Passage, candidates: Sequence[Load], now: float) -> Sequence[Load] | None:
        """The candidates that flow control allows; None while the request waits for one."""
        flow = self._pool.flow_control
        if self._passed or self._retries is not None:
            return flow.with_room(candidates, now)
        allowed = flow.enter(self, passage, candidates, now)
        self._passed, self._waited = allowed is not None, self._waited or allowed is None
        return allowed

    def _candidates(self, now: float) -> Sequence[Load]:
        """The available replicas that can answer and on which the request was not tried."""
        pool, prompt = self._pool, self._prompt
        only = pool.with_adapter(prompt.adapter) if prompt is not None else None
        candidates = pool.fleet.candidates(now, self._retries.tried if self._retries is not None else (), only)
        if prompt is None or prompt.previous is None:
            return candidates
        if self._home is None or self._home.gone:
            self._home = pool.stores_previous(prompt)
        return [load for load in candidates if self._home is not None and load is self._home.load]

    def _attempt_on(self, candidates: Sequence[Load], now: float) -> None:
        pool, prompt, first, retries = self._pool, self._prompt, self._record is None, self._retries
        assert prompt is not None
        if retries is None:
            pool.retry_budget.sent(now)
        else:
            retries.take_budget(pool.retry_budget, pool.fleet, now)
            pool.metrics.retries[retries.failures[-1][1]] += 1
        decision = pool.decider.decide(prompt, candidates, now, 1 if retries is None else len(retries.failures) + 1)
        replica = pool.fleet.at(decision.ticket.slot)
        attempt = self._attempt = Attempt(pool, self, decision, replica, self._lines(decision, replica, now))
        decided = monotonic()
        began = now if self._waited else self.arrived
        pool.metrics.decision.observe(decided - (began if first else now))
        waited = now - self._routable_at if self._waited and retries is None else 0.0
        if self._record is not None:
            self._record.outcome = "Retried"
            broken, waited = self._record.prefix_break, self._record.waited_seconds
        else:
            broken = pool.first_decision(decision, now)
        record = self._record = pool.record_decision(decision, self._request_id, self._request.tenant)
        record.prefix_break = broken
        record.decision_seconds = decided - began
        record.waited_seconds = waited
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
        """Waits if possible, unless an available replica has failed on this request."""
        pool, retries = self._pool, self._retries
        continues = self._prompt is not None and self._prompt.previous is not None
        by_id = self._prompt is not None and self._prompt.of_response
        if continues and self._home is None:
            assert self._prompt is not None
            self._fail(response_not_found(self._prompt.previous or "") if by_id else unknown_response())
            return
        waits = retries is None if continues else not pool.fleet.candidates(now)
        if waits and pool.wait_queue.add(self, now):
            self._waited, self._attempt = True, None
            return
        if retries is not None:
            # No other replica could serve the request, so the breakers would not protect it.
            # vLLM drops the connection of a stream that it cannot continue, so such a failure is not the replica's.
            retries.settle(pool.fleet, now, request_is_cause=by_id or not continues)
            self._fail(upstream_failed(retries.failures[-1][1], len(retries.failures)))
        elif self._home is not None:
            param = "response_id" if by_id else "previous_response_id"
            self._fail(response_away(self._home.reason(now) or "it is busy", param))
        elif self._prompt is not None and self._prompt.adapter and pool.fleet.candidates(now):
            self._fail(pool.without_adapter(self._prompt, now))
        else:
            why = pool.fleet.why_none(now)
            self._fail(no_replica_yet(why) if pool.wait_queue.enabled else no_replica(why))

    def _end(self, outcome: str) -> None:
        """Removes the request from the pool's books and abandons an open attempt."""
        pool, attempt, record = self._pool, self._attempt, self._record
        pool.in_flight.discard(self)
        if self._waited:
            pool.wait_queue.remove(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._passage is not None:
            pool.flow_control.end(self, self._spent(self._passage, outcome))
        self._count_tokens(outcome)
        self._attempt = None
        if attempt is not None and outcome != "Finished":
            attempt.abandon()
        if record is not None:
            record.outcome = outcome
            if attempt is not None and attempt.started:
                record.ttft = attempt.first_at - self.arrived if attempt.streams else None
                record.latency = monotonic() - self.arrived
        if outcome != "Failed":
            self._report(self._answer.status or _CLIENT_LEFT, outcome)

    def _spent(self, passage: Passage, outcome: str) -> Spent | None:
        """What the engine computed, for flow control; None if nobody knows. An event of a stream counts as a token."""
        attempt, record = self._attempt, self._record
        if attempt is None or record is None or outcome == "Failed" or self._answer.status >= 400:
            return Spent(0, 0, complete=False)
        if outcome == "Finished":
            if record.prompt_tokens is None:
                return None
            computed = max(0, record.prompt_tokens - (record.cached_tokens or 0))
            return Spent(computed, record.output_tokens or 0, complete=True)
        return Spent(passage.prompt_tokens, self._streamed, complete=False) if attempt.started else None

    def _tokens_used(self, outcome: str) -> TokensUsed | None:
        """None if an engine refused the request, or never had it. Where the engine did not report its count, the
        router's estimate of the prompt is taken, and each event that the client got is a token."""
        record, attempt = self._record, self._attempt
        if record is None or attempt is None or outcome == "Failed" or self._answer.status >= 400:
            return None
        background = self._prompt is not None and self._prompt.background
        if outcome == "Finished" and record.prompt_tokens is not None and not background:
            return TokensUsed(
                record.prompt_tokens, record.cached_tokens or 0, record.output_tokens or 0, estimated=False
            )
        output = self._streamed if attempt.streams else 0
        if self._prompt is not None and background:  # it repeats the client's tools, where any number may stand
            output = self._pool.tokens_of_answer(self._prompt)
        return TokensUsed(self._expected, 0, output, estimated=True)

    def _count_tokens(self, outcome: str) -> None:
        """Counts what the request used for its tenant. A quota counts all that the request may use where an answer that
        is no stream did not report it."""
        used, attempt, prompt = self._tokens_used(outcome), self._attempt, self._prompt
        answered = outcome == "Finished" or (attempt is not None and attempt.started)
        if used is not None and answered and prompt is not None and prompt.uses_device:
            self._pool.count_usage(self._request.tenant, prompt.model, used)
        if self._spending is None:
            return
        known = used is None or not used.estimated
        cut = outcome != "Finished" and attempt is not None and (attempt.streams or not attempt.started)
        self._spending.end((used.total if used is not None else 0) if known or cut else None)
        self._spending = None

    def _truncate(self, reason: str) -> None:
        """The client has a part of the answer, and the rest will not come."""
        self._pool.metrics.truncated += 1
        log.warning("request %s: answer truncated, %s", self._request_id, reason)
        self._end("Truncated")
        self._answer.truncate()

    def _fail(self, error: RequestError) -> None:
        if self._retries is not None:
            self._retries.end(self._pool.fleet, monotonic())
        self._end("Failed")
        self._refuse(error)

    def _refuse(self, error: RequestError) -> None:
        pool, answer = self._pool, self._answer
        self._report(error.status, "Failed", error.code or "other")
        pool.count_error(error)
        keep_alive = answer.keep_alive and pool.keeps_alive
        headers = pool.error_headers(error, self._request_id)
        answer.client.respond(error.status, headers, error.body(self._request.target), keep_alive=keep_alive)

    def _report(self, status: int, outcome: str, error: str | None = None) -> None:
        """Writes the line of the access log and ends the trace, where there are such."""
        if self._trace is None and self._pool.access_log is None:
            return
        tenant, retries = (self._request.tenant.name if self._request.tenant else "") or None, self._retries
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
