"""A completion request, from its last byte in to its last byte out.

`RoutedRequest` has the steps of every completion, sent to the engine by this router or by a proxy. The steps are read →
accept → quota → candidates → room → decision. At the end it closes the account: queues, the tenant's use, the record.

`ProxiedRequest` sends the request itself. If an attempt fails before the first body byte, another replica is chosen.
Each attempt on a replica is an `Attempt`; `Retries` decides whether another one follows. `extproc.picked_request` gives
a proxy the replica's address instead, and `copied_request` sends a copy of another pool's request.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from plumage_router.clock import monotonic, wall
from plumage_router.fleet.replicas import Load, Replica
from plumage_router.http.downstream import DownstreamConnection, EngineAnswer
from plumage_router.http.errors import (
    Failure,
    RequestError,
    adapter_away,
    adapter_missing,
    internal,
    no_replica,
    overloaded,
    response_away,
    response_not_found,
    unauthorized,
    unknown_response,
    upstream_failed,
)
from plumage_router.http.listener import NEEDS_KEY
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
from plumage_router.request.body import is_light
from plumage_router.request.prompt import Prompt
from plumage_router.request.usage import Usage
from plumage_router.routing.decider import Decision
from plumage_router.routing.decision_log import Record

if TYPE_CHECKING:  # a slow import, which few pools need
    from plumage_router.proxy.tracing import RequestTrace

__all__ = ["FAILED", "FINISHED", "Progress", "ProxiedRequest", "RoutedRequest", "progress_of"]

log = logging.getLogger(__name__)

FINISHED: Final = "Finished"
FAILED: Final = "Failed"
Only = Callable[[Sequence[Load]], Sequence[Load]]
_CLIENT_LEFT: Final = 499  # only in the access log: the client left before an answer began (nginx' number)
_FORWARDED: Final = frozenset((b"traceparent", b"tracestate", b"accept"))
_OF_A_NEW_TRACE: Final = _FORWARDED - {b"traceparent", b"tracestate"}
_OF_THE_CLIENTS_TRACE: Final = _FORWARDED - {b"traceparent"}  # the attempt has its own


@dataclass(slots=True, init=False)
class Progress:
    """How far an engine's answer came.

    status: 0 before its head. began: the engine answers. first_at: when the first body byte came; None before.
    streams: it is a stream, of so many `events`. asked: the engine was asked for its counts, `usage`, which are there
    in a complete answer.
    """

    status: int
    began: bool
    first_at: float | None
    streams: bool
    events: int
    usage: Usage
    asked: bool

    def __init__(
        self,
        status: int,
        began: bool,
        first_at: float | None,
        streams: bool,
        events: int,
        usage: Usage,
        asked: bool,
    ) -> None:
        self.status, self.began, self.first_at, self.streams = status, began, first_at, streams
        self.events, self.usage, self.asked = events, usage, asked


def progress_of(attempt: Attempt, status: int, events: int, *, complete: bool) -> Progress:
    """Returns how far the answer of an attempt came.

    status, events: that its owner got. complete: the answer's counts are the request's.
    """
    return Progress(
        status=status,
        began=attempt.started,
        first_at=attempt.first_at if attempt.started else None,
        streams=attempt.streams,
        events=events,
        usage=attempt.reader.usage if complete else Usage(),
        asked=True,
    )


class RoutedRequest(ABC):
    """An `InFlightRequest` of the pool; a subclass sends it, and answers with `_fail` and `_end`.

    `arrived`: when its last byte came, in seconds of the router's clock.
    """

    __slots__ = (
        "_expected",
        "_explain",
        "_home",
        "_passage",
        "_passed",
        "_pool",
        "_prompt",
        "_reading",
        "_record",
        "_request",
        "_request_id",
        "_routable_at",
        "_spending",
        "_waited",
        "arrived",
    )

    def __init__(self, pool: PoolState, request: Request) -> None:
        self._pool = pool
        self._request = request
        self._request_id = ""
        self._prompt: Prompt | None = None
        self._reading: SlicedWork | None = None
        self._spending: Spending | None = None  # from the tenant's quotas
        self._record: Record | None = None
        self._expected = 0  # tokens of the prompt, as far as the router knows
        self._explain = False
        self._home: Replica | None = None  # stores the response that the request continues
        self._passage: Passage | None = None  # in the queue of flow control
        self._passed = False  # flow control sent it on
        self._waited = False  # in a queue
        self.arrived = self._routable_at = monotonic()

    # -- what differs -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def replica(self) -> Replica | None:
        """The replica that has the request now."""

    @property
    @abstractmethod
    def answering(self) -> bool:
        """Whether the client got a part of the answer."""

    @abstractmethod
    def expire(self) -> None:
        """Ends the request, which took longer than any request may."""

    @abstractmethod
    def leave_silent_replica(self) -> None:
        """Leaves the replica, which will send no first byte."""

    @abstractmethod
    def check_timeouts(self, now: float) -> None:
        """Ends a stream that did not begin or continue in time."""

    @abstractmethod
    def _admit(self) -> Steps[Prompt]:
        """Checks the client and the router's load. Returns the steps that read the body. Raises RequestError."""

    @abstractmethod
    def _available(self, now: float, only: Only | None) -> Sequence[Load]:
        """Returns the available replicas that may get the request. only: chooses those that have loaded its adapter."""

    @abstractmethod
    def _send_to(self, candidates: Sequence[Load], now: float) -> None:
        """Chooses one of the replicas, and sends the request there."""

    @abstractmethod
    def _may_wait(self, now: float) -> bool:
        """Whether the request may wait for a replica, since none can have it."""

    @abstractmethod
    def _fail(self, error: RequestError) -> None:
        """Ends the request with an error of the router's own."""

    def _check_failures(self, now: float) -> None:
        """Raises RequestError if replicas have failed on the request, and no other one can have it."""
        return

    def _why_none(self, now: float) -> str:
        """Why no replica is available."""
        return self._pool.fleet.why_none(now)

    # -- for the queues -----------------------------------------------------------------------------------------------

    def can_resume(self, now: float) -> bool:
        return bool(self._candidates(now))

    def resume_routing(self) -> None:
        self._route()

    def leave_queue(self) -> None:
        self._passed = True
        self._route()

    def turn_away(self, error: RequestError) -> None:
        self._fail(error)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads the body, at once or in slices, and routes the request. Raises RequestError."""
        pool, request, steps = self._pool, self._request, self._admit()
        size = request.size
        if size > LARGE and not is_light(request.body):
            pool.in_flight.add(self)
            self._reading = pool.time_slicer.add(size, steps, self._read_done, tenant=request.sender)
            return
        self._accept(run_now(steps))
        pool.in_flight.add(self)
        self._route_accepted()

    def _read_done(self, prompt: Prompt | None, error: Exception | None) -> None:
        """Continues after the body was read in slices."""
        self._reading = None
        try:
            if error is not None:
                raise error
            assert prompt is not None
            self._accept(prompt)
        except RequestError as wrong:
            self._fail(wrong)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._fail(internal())
        else:
            self._route_accepted()

    def _check_load(self) -> None:
        """Raises RequestError when the router takes no further request."""
        pool = self._pool
        if not pool.serving:
            raise overloaded("The router is shutting down.")
        if len(pool.in_flight) >= pool.limits.max_in_flight:
            raise overloaded("Too many requests are in flight.")

    def _accept(self, prompt: Prompt) -> None:
        """Accepts the body that was read. Raises RequestError if it is quarantined, or over its tenant's quota."""
        pool = self._pool
        self._prompt = prompt
        if pool.quarantine.cases:
            pool.quarantine.check(prompt, monotonic())
        self._expected = expected = pool.decider.expected_tokens(prompt)  # while its text is there
        if pool.flow_control.config is not None:
            self._passage = pool.flow_control.place(self._request, prompt, self._tenant, expected)
        self._spending = self._spend(prompt, expected)

    def _spend(self, prompt: Prompt, expected: int) -> Spending | None:
        """Takes the request from its tenant's quotas; None without a quota. Raises RequestError over a limit."""
        pool = self._pool
        return pool.quotas.spend(prompt, self._tenant, expected, self._quota_decided) if pool.config.quotas else None

    def _quota_decided(self, error: RequestError | None) -> None:
        """Continues once the other routers' numbers came, or are not needed any more."""
        if error is not None:
            self._fail(error)
        else:
            self._routable_at = monotonic()
            self._route()

    def _route_accepted(self) -> None:
        if self._spending is None or not self._spending.waits:
            self._route()

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _route(self) -> None:
        """Sends the request to a replica, unless it must wait for one."""
        try:
            now = monotonic()
            candidates = self._candidates(now)
            if not candidates:
                self._without_replica(now)
                return
            roomy = self._with_room(candidates, now)
            if roomy is not None:
                self._send_to(roomy, now)
        except RequestError as error:
            self._fail(error)
        except Exception:
            log.exception("request %s: routing it failed", self._request_id)
            self._fail(internal())

    def _candidates(self, now: float) -> Sequence[Load]:
        """Returns the available replicas that can answer."""
        pool, prompt = self._pool, self._prompt
        candidates = self._available(now, self._only_adapter(prompt.adapter) if prompt is not None else None)
        if prompt is None or prompt.previous is None:
            return candidates
        if self._home is None or self._home.gone:
            self._home = pool.stored_responses.home(prompt)
        return [load for load in candidates if self._home is not None and load is self._home.load]

    def _with_room(self, candidates: Sequence[Load], now: float) -> Sequence[Load] | None:
        """Returns the candidates that flow control allows; None while the request waits for one."""
        flow, passage = self._pool.flow_control, self._passage
        if passage is None:
            return candidates
        if self._passed:
            return flow.with_room(candidates, now)
        allowed = flow.enter(self, passage, candidates, now)
        self._passed, self._waited = allowed is not None, self._waited or allowed is None
        return allowed

    def _without_replica(self, now: float) -> None:
        """Waits if possible. Raises RequestError otherwise."""
        pool, prompt = self._pool, self._prompt
        by_id = prompt is not None and prompt.of_response
        if prompt is not None and prompt.previous is not None and self._home is None:
            raise response_not_found(prompt.previous) if by_id else unknown_response()
        if self._may_wait(now) and pool.wait_queue.add(self, now):
            self._waited = True
            return
        self._check_failures(now)
        if self._home is not None:
            param = "response_id" if by_id else "previous_response_id"
            raise response_away(self._home.reason(now) or "it is busy", param)
        if prompt is not None and prompt.adapter and self._lacks_adapter(prompt, now):
            away = pool.fleet.why_none(now, self._only_adapter(prompt.adapter))
            raise adapter_away(prompt.model, away) if away else adapter_missing(prompt.model)
        why = self._why_none(now)
        raise no_replica_yet(why) if pool.wait_queue.enabled else no_replica(why)

    def _lacks_adapter(self, prompt: Prompt, now: float) -> bool:
        """Whether replicas are available, and none that has loaded the prompt's adapter."""
        fleet, only = self._pool.fleet, self._only_adapter(prompt.adapter)
        return bool(fleet.candidates(now)) and not fleet.candidates(now, only=only)

    def _only_adapter(self, adapter: str) -> Only | None:
        """Chooses the replicas that have loaded the adapter; None for the base model."""
        return partial(self._pool.decider.adapters.serving, adapter) if adapter else None

    def _note_decision(self, decision: Decision, now: float) -> Record:
        """Call once a decision is carried out. now: when it began. A retry has a record of its own."""
        pool, before = self._pool, self._record
        decided, began = monotonic(), now if self._waited else self.arrived
        pool.metrics.decision.observe(decided - (began if before is None else now))
        if before is None:
            broken, waited = pool.decisions.add_first(decision, now), now - self._routable_at if self._waited else 0.0
            pool.metrics.sorted_tools += decision.prompt.sorted_tools
        else:
            before.outcome = "Retried"
            broken, waited = before.prefix_break, before.waited_seconds
        record = self._record = pool.decisions.add(
            decision, request_id=self._request_id, at=wall(), tenant=self._tenant, policy=pool.decider.policy.name,
            degraded=pool.directory.degraded,
        )  # fmt: skip
        record.prefix_break = broken
        record.decision_seconds = decided - began
        record.waited_seconds = waited
        return record

    # -- the answer, and the end ---------------------------------------------------------------------------------------

    def _note_first_byte(self, prompt: Prompt, first_at: float, *, streams: bool) -> None:
        """Counts the time to the answer's first body byte. streams: it was the first token."""
        if streams and prompt.measured:
            self._pool.metrics.ttft.observe(first_at - self.arrived)

    def _note_answer(self, prompt: Prompt, usage: Usage, last_at: float) -> None:
        """Counts a complete answer. last_at: when its last byte came."""
        if self._pool.quarantine.cases:
            self._pool.quarantine.answered(prompt)
        if prompt.measured:
            self._pool.metrics.latency.observe(last_at - self.arrived)
        record = self._record
        if record is not None and not prompt.of_response:  # its tokens were those of the request that made the response
            record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            record.output_tokens = usage.output_tokens

    def _close_account(self, outcome: str, progress: Progress | None) -> None:
        """Removes the request from the pool's queues and counters.

        progress: of its answer; None if no engine has the request.
        """
        pool, record = self._pool, self._record
        pool.in_flight.discard(self)
        if self._waited:
            pool.wait_queue.remove(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._passage is not None:
            pool.flow_control.end(self, _spent(self._passage, outcome, progress))
            self._passage = None
        self._count_tokens(outcome, progress)
        if record is None:
            return
        record.outcome = outcome
        if progress is not None and progress.first_at is not None:
            record.ttft = progress.first_at - self.arrived if progress.streams else None
            record.latency = monotonic() - self.arrived

    def _count_tokens(self, outcome: str, progress: Progress | None) -> None:
        """Counts what the request used for its tenant.

        Where an answer did not report that, a quota counts all that the request may use. Such an answer is no stream,
        or it is complete and its engine was asked.
        """
        pool, prompt, used = self._pool, self._prompt, _tokens_used(self._prompt, self._expected, outcome, progress)
        answered = progress is not None and (outcome == FINISHED or progress.began)
        if used is not None and answered and prompt is not None and prompt.uses_device:
            pool.usage.add(self._tenant, prompt.model, used)
        spending, self._spending = self._spending, None
        if spending is None:
            return
        unknown = False
        if used is not None and used.estimated and progress is not None and progress.began:
            unknown = not progress.streams or (outcome == FINISHED and progress.asked)
        spending.end(None if unknown else used.total if used is not None else 0)

    @property
    def _tenant(self) -> str:
        """The tenant's name; empty where clients need no keys."""
        tenant = self._request.tenant
        return tenant.name if tenant is not None else ""

    @property
    def _tenant_name(self) -> str | None:
        """For the access log."""
        return self._tenant or None


def _tokens_used(prompt: Prompt | None, expected: int, outcome: str, progress: Progress | None) -> TokensUsed | None:
    """Returns what a request used; None if an engine refused it, or never had it. expected: tokens of its prompt.

    Where the engine did not report its count, the estimate of the prompt is taken, and each event that the client got
    is a token.
    """
    if progress is None or outcome == FAILED or progress.status >= 400:
        return None
    usage = progress.usage
    background = prompt is not None and prompt.background
    if usage.prompt_tokens is not None and not background:
        return TokensUsed(usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or 0, estimated=False)
    output = progress.events if progress.streams else 0
    if prompt is not None and background:  # it repeats the client's tools, where any number may stand
        output = prompt.expected_answer
    return TokensUsed(expected, 0, output, estimated=True)


def _spent(passage: Passage, outcome: str, progress: Progress | None) -> Spent | None:
    """Returns what the engine computed; None if nobody knows. An event of a stream counts as a token."""
    if progress is None or outcome == FAILED or progress.status >= 400:
        return Spent(0, 0, complete=False)
    usage = progress.usage
    if outcome == FINISHED:
        if usage.prompt_tokens is None:
            return None
        computed = max(0, usage.prompt_tokens - (usage.cached_tokens or 0))
        return Spent(computed, usage.output_tokens or 0, complete=True)
    return Spent(passage.prompt_tokens, progress.events, complete=False) if progress.first_at is not None else None


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
            self._request_id = self._request.id
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
        if self._retries is not None:
            self._retries.drop(self._pool.fleet)
        self._pool.metrics.aborted += 1
        self._end("Aborted")

    # -- for the pool's tick ------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Ends the request, which took longer than any request may."""
        if self.answering:
            self._truncate("the request took too long")
        else:
            self._fail(RequestError(504, "The request took too long.", code="timeout"))

    def leave_silent_replica(self) -> None:
        """Tries the request on another replica: this one will send no first byte."""
        if self._attempt is not None:
            self._attempt.leave_silent_replica()

    def check_timeouts(self, now: float) -> None:
        """Ends a stream that did not begin or continue in time, unless the client does not read."""
        attempt = self._attempt
        if attempt is None or self._paused:
            self._last_byte_at = now
        elif attempt.decision.prompt.of_response:
            self._check_stored(attempt, now)
        else:
            attempt.check_timeouts(now, self._last_byte_at)

    def _check_stored(self, attempt: Attempt, now: float) -> None:
        """Ends a silent stream of a stored response. No replica failed: vLLM ends it only if the response completes."""
        if attempt.started and self._answer.events and now - self._last_byte_at > self._pool.timeouts.idle:
            self._truncate("the stored response sent nothing more")
        elif not attempt.started and now - attempt.sent_at > self._pool.timeouts.first_byte:
            self._fail(RequestError(504, "The stored response sent nothing in time.", code="timeout"))

    # -- for the attempts ---------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, status: int, headers: dict[bytes, bytes], data: bytes) -> None:
        pool, answer = self._pool, self._answer
        self._last_byte_at = attempt.first_at
        if self._retries is not None:
            self._retries.charge(pool.fleet, attempt.first_at, request_is_cause=False)
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
        prompt.forget(pool.quarantine.seed)

    def more(self, data: bytes) -> None:
        answer = self._answer
        self._last_byte_at = self._pool.tick
        self._streamed += data.count(b"data: ")
        answer.client.transport.write(chunk(data) if answer.chunked else data)

    def complete(self, attempt: Attempt, data: bytes) -> None:
        self._streamed += data.count(b"data: ")
        self._note_answer(attempt.decision.prompt, attempt.reader.usage, attempt.last_at)
        self._end(FINISHED)
        self._answer.end(data)

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
        quarantined = cause is Cause.UNKNOWN and pool.quarantine.failed(
            attempt.decision.prompt, attempt.replica.id, now
        )
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
        if request.tenant is None:  # the port let it in without one
            raise unauthorized(NEEDS_KEY)
        if pool.tracing.current is not None:
            self._trace = pool.tracing.current.begin(request, pool.config.pool)
        if b"x-plumage-explain" in request.headers:
            self._explain = pool.wants_explanation(request)
        self._check_load()
        salt = pool.engines.salts.of(request.tenant) if pool.auth.enabled else ""
        call = None if request.reservation is not None else response_call(request.method, request.target)
        if call is not None:
            return pool.reader.response_steps(call, salt=salt)
        if pool.config.quotas:
            pool.quotas.check(self._tenant)
        return pool.reader.steps_of(request, salt=salt, tenant=pool.auth.enabled)

    def _available(self, now: float, only: Only | None) -> Sequence[Load]:
        """Returns those on which the request was not tried."""
        return self._pool.fleet.candidates(now, self._retries.tried if self._retries is not None else (), only)

    def _send_to(self, candidates: Sequence[Load], now: float) -> None:
        """Starts an attempt."""
        pool, prompt, retries = self._pool, self._prompt, self._retries
        assert prompt is not None
        if retries is None:
            pool.retry_budget.sent(now)
        else:
            retries.take_budget(pool.retry_budget, pool.fleet, now, self._tenant_name)
            pool.metrics.retries[retries.failures[-1][1]] += 1
        decision = pool.decider.decide(prompt, candidates, now, 1 if retries is None else len(retries.failures) + 1)
        replica = pool.fleet.at(decision.ticket.slot)
        attempt = self._attempt = Attempt(pool, self, decision, replica, self._lines(decision, replica, now))
        record = self._note_decision(decision, now)
        if retries is not None:
            record.failures = retries.failures
        attempt.start()
        send_copy, self._request.copy = self._request.copy, None
        if send_copy is not None:
            send_copy(self._request, self._request_id, self._trace)

    def _lines(self, decision: Decision, replica: Replica, now: float) -> bytes:
        """Returns the request's own header lines for an engine."""
        forwarded, trace = _FORWARDED, b""
        if self._trace is not None:
            forwarded = _OF_THE_CLIENTS_TRACE if self._trace.continues else _OF_A_NEW_TRACE
            waited = now - self._routable_at
            parent = self._trace.attempt(decision, replica, policy=self._pool.decider.policy.name, waited=waited)
            trace = b"traceparent: %b\r\n" % parent
        others = header_lines(forwarded, self._request.headers)
        return b"x-request-id: %b\r\n%b%b" % (self._request_id.encode(), others, trace)

    def _without_replica(self, now: float) -> None:
        super()._without_replica(now)
        self._attempt = None  # the request waits

    def _may_wait(self, now: float) -> bool:
        """Whether it may wait. False after an available replica failed."""
        if self._prompt is not None and self._prompt.previous is not None:
            return self._retries is None
        return not self._pool.fleet.candidates(now)

    def _check_failures(self, now: float) -> None:
        """Raises RequestError after the last allowed failure.

        Reason: the breakers would not protect a request that no other replica could serve. vLLM drops the connection of
        a stream that it cannot continue, so such a failure is not the replica's.
        """
        retries, prompt = self._retries, self._prompt
        if retries is None:
            return
        continues = prompt is not None and prompt.previous is not None and not prompt.of_response
        if continues:
            retries.charge(self._pool.fleet, now, request_is_cause=False)
        else:
            retries.drop(self._pool.fleet)
        raise upstream_failed(retries.failures[-1][1], len(retries.failures))

    def _progress(self, outcome: str) -> Progress | None:
        attempt = self._attempt
        if attempt is None or self._record is None:
            return None
        complete = outcome == FINISHED and not attempt.decision.prompt.of_response
        return progress_of(attempt, self._answer.status, self._streamed, complete=complete)

    def _end(self, outcome: str) -> None:
        """Removes the request from the pool's queues and counters, and abandons an open attempt."""
        self._close_account(outcome, self._progress(outcome))
        attempt, self._attempt = self._attempt, None
        if attempt is not None and outcome != FINISHED:
            attempt.abandon()
        if outcome != FAILED:
            self._report(self._answer.status or _CLIENT_LEFT, outcome)

    def _truncate(self, reason: str) -> None:
        """Cuts an answer: the client has a part of it, and the rest will not come."""
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
        answer.client.respond(
            error.status, error.headers(self._request_id), error.body(self._request.target), keep_alive=keep_alive
        )

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
    """Returns the fields of an access log line for prompt, replica and answer. seconds: the request's duration."""
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
