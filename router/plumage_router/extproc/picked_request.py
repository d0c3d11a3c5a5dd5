"""One request that a proxy asks about: from its headers to the end of the answer that an engine gives the proxy.

headers → body → read → choose a replica → answer the proxy; then the answer's headers, body and end pass by. The steps
are those of the router's own requests (`proxy/proxied_request.py`), by the same pool. What differs: the proxy sends the
request, so nobody here can try another replica. It gets the next best ones as fallbacks, where the pool asks for that.

The body passes unchanged, unless the engine needs another one: the base model instead of an alias, a tenant's salt,
sorted tools. An engine's own key replaces the client's.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from plumage_router.clock import monotonic
from plumage_router.extproc.destination import endpoint_of, fallbacks, in_subset
from plumage_router.extproc.grpc import Call, GrpcStatus
from plumage_router.extproc.messages import (
    BodyMode,
    Incoming,
    Phase,
    body_answer,
    header_answer,
    immediate,
    read,
    trailer_answer,
)
from plumage_router.extproc.picked_attempt import PickedAttempt
from plumage_router.extproc.request_head import asks_for_models, engine_headers, read_head
from plumage_router.fleet.replicas import Load, Replica
from plumage_router.http.errors import (
    Failure,
    RequestError,
    body_too_large,
    engines_silent,
    internal,
    no_replica,
    overloaded,
)
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import Steps
from plumage_router.http.wire import JSON
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.proxied_request import FAILED, FINISHED, Only, Progress, RoutedRequest
from plumage_router.request.body import check_media_type
from plumage_router.request.prompt import Prompt

if TYPE_CHECKING:  # a slow import, which few pools need
    from plumage_router.proxy.tracing import RequestTrace

__all__ = ["PickedRequest"]

log = logging.getLogger(__name__)

_ABORTED: Final = 499  # only in the access log
_NOT_FOUND: Final = "This path does not exist. Engines serve POST /v1/chat/completions, POST /v1/completions and more."
_NO_STORED: Final = "The endpoint picker serves no stored responses. Ask the router's own port for them."
_NO_FORMS: Final = "The endpoint picker serves no forms. Send audio files to the router's own port."
_NEEDS_BODY: Final = (
    "The proxy does not send request bodies to the endpoint picker: set request_body_mode: FULL_DUPLEX_STREAMED."
)


class _Stage(Enum):
    HEAD = "head"  # nothing came yet
    BODY = "body"  # the request's body arrives
    WAITING = "waiting"  # for a decision
    PICKED = "picked"  # the proxy has a destination
    ANSWERING = "answering"  # the answer passes by
    OVER = "over"  # it was answered here, or ended


class PickedRequest(RoutedRequest):
    """A `CallHandler`. fallbacks: endpoints that the proxy gets after the chosen one."""

    __slots__ = (
        "_attempt", "_call", "_chosen", "_fallbacks", "_modes", "_raw", "_stage", "_subset", "_trace", "_traceparent",
        "_trailers",
    )  # fmt: skip

    def __init__(self, pool: PoolState, fallbacks: int, call: Call) -> None:
        super().__init__(pool, Request(call.peer))
        self._fallbacks = fallbacks
        self._call = call
        self._stage = _Stage.HEAD
        self._modes = (int(BodyMode.FULL_DUPLEX_STREAMED), int(BodyMode.FULL_DUPLEX_STREAMED))
        self._subset: tuple[str, ...] | None = None
        self._trailers = False  # the request's body was followed by trailers
        self._raw = b""
        self._attempt: PickedAttempt | None = None
        self._chosen = ""  # the first endpoint that the proxy got
        self._trace: RequestTrace | None = None
        self._traceparent = b""  # for the engine, where it is not the client's
        call.expire_at(pool.tick + pool.timeouts.header)

    # -- for the pool's tick ------------------------------------------------------------------------------------------

    @property
    def replica(self) -> Replica | None:
        """The replica that has the request now."""
        return self._attempt.replica if self._attempt is not None else None

    @property
    def answering(self) -> bool:
        """Whether the client got the answer's head."""
        return self._stage is _Stage.ANSWERING

    def expire(self) -> None:
        """Ends a request that took longer than any request may."""
        self._cut(RequestError(504, "The request took too long.", code="timeout"), "the request took too long")

    def leave_silent_replica(self) -> None:
        """Gives up a replica that sends no first byte. The proxy sent the request, so only its client can send it
        again."""
        attempt = self._attempt
        if attempt is not None and not attempt.over:
            self._give_up(Failure.ENGINE_STALLED if attempt.replica.stalled else Failure.HEALTH_CHECK_FAILED)

    def check_timeouts(self, now: float) -> None:
        """Checks that a stream begins and continues in time."""
        attempt, timeouts = self._attempt, self._pool.timeouts
        if attempt is None or attempt.over:
            return
        if attempt.first_at is not None:
            if attempt.streams and now - attempt.last_at > timeouts.idle:
                attempt.abandon()  # not the replica's failure: the proxy waits for a client that does not read, perhaps
                self._cut(engines_silent(Failure.STREAM_TIMEOUT, 1), Failure.STREAM_TIMEOUT.text)
        elif attempt.decision.prompt.stream and now - attempt.sent_at > timeouts.first_byte:
            self._give_up(Failure.FIRST_BYTE_TIMEOUT)

    # -- for the call -------------------------------------------------------------------------------------------------

    def message(self, data: bytes) -> None:
        try:
            incoming = read(data)
        except ValueError as error:
            self._break(GrpcStatus.INVALID_ARGUMENT, str(error))
            return
        if incoming.watched:
            self._break(GrpcStatus.UNIMPLEMENTED, "observability_mode: a picker must be able to answer")
            return
        if self._stage is _Stage.OVER or incoming.phase is None:
            return  # what was on its way, or of a newer proxy
        try:
            self._take(incoming, incoming.phase)
        except RequestError as error:
            self._fail(error)
        except Exception:
            log.exception("request %s: picking failed", self._request_id)
            self._fail(internal())

    def half_closed(self) -> None:
        """The proxy is done with the request: it is complete, or its client left."""
        if self._stage is _Stage.ANSWERING and self._modes[1] == BodyMode.NONE:
            self._complete()  # the proxy shows no body, so this is the end of the answer
        self._leave()
        self._call.end()

    def aborted(self) -> None:
        self._leave()

    def crowded(self) -> None:
        self._cut(_no_memory(), "no memory is left for the proxy's messages")

    def expired(self) -> None:
        """Nothing came in time. While the pool has the request, its tick ends it instead."""
        if self._stage is _Stage.BODY:
            self._fail(RequestError(408, "The request did not arrive in time.", code="request_timeout"))
        else:
            self._break(GrpcStatus.DEADLINE_EXCEEDED, "the proxy sent nothing in time")

    # -- what the proxy sends -----------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming, phase: Phase) -> None:
        stage = self._stage
        if phase is Phase.REQUEST_HEADERS and stage is _Stage.HEAD:
            self._request_headers(incoming)
        elif phase is Phase.REQUEST_BODY and stage is _Stage.BODY:
            self._request_body(incoming)
        elif phase is Phase.REQUEST_TRAILERS and stage is _Stage.BODY:
            self._trailers = True
            self._body_complete()
        elif phase is Phase.REQUEST_TRAILERS and stage in (_Stage.PICKED, _Stage.ANSWERING):
            self._call.send(trailer_answer(phase))
        elif phase is Phase.RESPONSE_HEADERS and stage in (_Stage.PICKED, _Stage.WAITING, _Stage.BODY):
            self._response_headers(incoming)
        elif phase is Phase.RESPONSE_BODY and stage is _Stage.ANSWERING:
            self._response_body(incoming)
        elif phase is Phase.RESPONSE_TRAILERS and stage is _Stage.ANSWERING:
            self._complete()
            self._call.send(trailer_answer(phase))
        else:
            self._break(GrpcStatus.INVALID_ARGUMENT, f"{phase.name.lower()} cannot come now")

    def _request_headers(self, incoming: Incoming) -> None:
        pool, request = self._pool, self._request
        if incoming.modes is not None:
            self._modes = incoming.modes
        self._subset = incoming.subset
        read_head(request, incoming.headers, pool.limits.max_header_bytes)
        refusal = pool.admit(request)
        self._request_id = request.id
        if refusal is not None:
            raise refusal
        pool.metrics.requests += request.is_completion
        if request.is_completion and request.reservation is None:  # of a stored response
            raise RequestError(404, _NO_STORED, code="not_found")
        if not request.is_completion:
            self._pass_on()
            return
        length = request.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > pool.limits.max_body_bytes:
            raise body_too_large(pool.limits.max_body_bytes)
        if self._modes[0] in (BodyMode.NONE, BodyMode.STREAMED) and not incoming.end:
            log.error("%s", _NEEDS_BODY)
            raise RequestError(500, _NEEDS_BODY, code="picker_body_mode")
        assert request.reservation is not None, "a completion's body has a reservation"
        request.reservation.evict = self._evict
        self._stage = _Stage.BODY
        self._call.expire_at(pool.tick + pool.timeouts.body)
        if self._modes[0] != BodyMode.FULL_DUPLEX_STREAMED and not incoming.end:
            self._call.send(header_answer(Phase.REQUEST_HEADERS))  # the proxy waits with the body for it
        if incoming.end:
            self._body_complete()

    def _request_body(self, incoming: Incoming) -> None:
        request, pool, size = self._request, self._pool, len(incoming.body)
        reservation = request.reservation
        assert reservation is not None
        request.size += size
        if request.size > pool.limits.max_body_bytes:
            raise body_too_large(pool.limits.max_body_bytes)
        if size:
            if not pool.body_memory.reserve(reservation, size):
                raise _no_memory()
            if request.reservation is not reservation:  # it made room for its own body
                pool.body_memory.release(reservation)
                return
            request.body.add(incoming.body)
        if incoming.end:
            self._body_complete()
        elif size:
            pool.body_memory.unfinished(reservation)

    def _body_complete(self) -> None:
        pool, request = self._pool, self._request
        assert request.reservation is not None
        pool.body_memory.complete(request.reservation)
        self._stage = _Stage.WAITING
        self._call.expire_at(math.inf)
        self.arrived = self._routable_at = monotonic()
        self._read()

    def _response_headers(self, incoming: Incoming) -> None:
        attempt = self._attempt
        if attempt is None:  # the proxy answered while the request was read, or it needs no account
            self._leave()
        self._stage = _Stage.ANSWERING
        headers = dict(incoming.headers)
        status = headers.get(b":status", b"")
        number = int(status) if status.isdigit() else 502
        self._pool.metrics.responses[number] += 1
        extra = [(b"x-request-id", self._request_id.encode())]
        if attempt is not None:
            if incoming.served and incoming.served != self._chosen:
                attempt = self._moved(attempt, incoming.served)
            attempt.head(number, headers)
            if self._explain and self._record is not None:
                document = json.dumps(self._record.document(), separators=(",", ":"))
                extra.append((b"x-plumage-explain", document.encode()))
            if attempt.over:
                self._end(FAILED, number)
        self._call.send(header_answer(Phase.RESPONSE_HEADERS, extra))
        if incoming.end:
            self._complete()

    def _response_body(self, incoming: Incoming) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.body(incoming.body):
            assert attempt.first_at is not None
            if self._trace is not None:
                self._trace.first_byte(attempt.status, streams=attempt.streams)
            self._note_first_byte(attempt.decision.prompt, attempt.first_at, streams=attempt.streams)
        if incoming.end:
            self._complete()
        streamed = self._modes[1] == BodyMode.FULL_DUPLEX_STREAMED
        body = incoming.body if streamed else None
        self._call.send(*body_answer(Phase.RESPONSE_BODY, body, end=incoming.end))

    # -- reading and choosing -----------------------------------------------------------------------------------------

    def _admit(self) -> Steps[Prompt]:
        pool, request = self._pool, self._request
        if pool.tracing.current is not None:
            sent = request.headers.get(b"traceparent")
            self._trace = pool.tracing.current.begin(request, pool.config.pool)
            now = request.headers.get(b"traceparent", b"")
            self._traceparent = now if now != sent else b""
        self._explain = pool.wants_explanation(request)
        self._check_load()
        if pool.config.quotas:
            pool.quotas.check(self._tenant)
        if check_media_type(request):
            raise RequestError(404, _NO_FORMS, code="not_found")
        salt = pool.engines.salts.of(request.tenant) if pool.auth.enabled else ""
        return pool.reader.steps_of(request, salt=salt, tenant=pool.auth.enabled, ask_usage=False)

    def _accept(self, prompt: Prompt) -> None:
        self._raw = self._request.body.whole()
        super()._accept(prompt)

    def _available(self, now: float, only: Only | None) -> Sequence[Load]:
        """Returns the replicas that the proxy allows."""
        fleet = self._pool.fleet
        candidates = fleet.candidates(now, only=only)
        return candidates if self._subset is None else in_subset(fleet, candidates, self._subset)

    def _may_wait(self, now: float) -> bool:
        """Not for an adapter that no replica has."""
        prompt = self._prompt
        return prompt is None or not prompt.adapter or not self._lacks_adapter(prompt, now)

    def _send_to(self, candidates: Sequence[Load], now: float) -> None:
        """Answers the proxy."""
        pool, prompt = self._pool, self._prompt
        assert prompt is not None
        pool.retry_budget.sent(now)
        decision = pool.decider.decide(prompt, candidates, now)
        replica = pool.fleet.at(decision.ticket.slot)
        self._attempt = PickedAttempt(pool, decision, replica)
        self._note_decision(decision, now)
        if self._trace is not None:
            waited = now - self._routable_at
            self._traceparent = self._trace.attempt(decision, replica, policy=pool.decider.policy.name, waited=waited)
        self._chosen = endpoint_of(replica)
        others = fallbacks(pool.fleet, decision, self._fallbacks) if prompt.previous is None else ()
        payload = prompt.payload if prompt.id_salt is None else pool.stored_responses.named(prompt, replica)
        prompt.forget(pool.quarantine.seed)
        self._answer_proxy(replica, ",".join((self._chosen, *others)), payload)

    def _answer_proxy(self, replica: Replica, destination: str, payload: bytes) -> None:
        """Sends destination and body to the proxy."""
        self._stage = _Stage.PICKED
        key = self._pool.engines.keys.of(replica.member.url)
        changed = payload is not self._raw
        continues = self._trace is None or self._trace.continues
        headers, removed = engine_headers(
            self._request, self._request_id, key, changed=changed, trace=self._traceparent, continues=continues
        )
        target, phase, end = destination.encode(), Phase.REQUEST_BODY, not self._trailers
        if self._modes[0] == BodyMode.FULL_DUPLEX_STREAMED:
            head = header_answer(Phase.REQUEST_HEADERS, headers, removed, target)
            answers = [head, *body_answer(phase, payload, end=end)]
        else:
            body = payload if changed else None
            answers = body_answer(
                phase, body, end=end, headers=headers, removed=removed, destination=target, whole=True
            )  # fmt: skip
        if self._trailers:
            answers.append(trailer_answer(Phase.REQUEST_TRAILERS))
        held, self._request.reservation = self._request.reservation, None
        self._free_body()
        self._call.send(*answers, held=held)

    def _pass_on(self) -> None:
        """Passes on a list of models, which any replica answers. Nothing else is sent to an engine."""
        pool, request = self._pool, self._request
        if not asks_for_models(request):
            raise RequestError(404, _NOT_FOUND, code="not_found")
        pool.authenticate(request)
        now = monotonic()
        candidates = self._candidates(now)
        if not candidates:
            raise no_replica(self._why_none(now))
        replica = pool.fleet.at(min(candidates, key=lambda load: load.routed).slot)
        key = pool.engines.keys.of(replica.member.url)
        headers, removed = engine_headers(request, self._request_id, key, changed=False)
        self._stage = _Stage.PICKED
        self._call.expire_at(pool.tick + pool.timeouts.request)
        self._call.send(header_answer(Phase.REQUEST_HEADERS, headers, removed, endpoint_of(replica).encode()))

    def _why_none(self, now: float) -> str:
        if self._subset is not None and self._pool.fleet.candidates(now):
            return "the proxy allows none of those that are available"
        return self._pool.fleet.why_none(now)

    def _moved(self, attempt: PickedAttempt, served: str) -> PickedAttempt:
        """The proxy sent the request to a fallback: its replica gets the account."""
        pool = self._pool
        other = next((replica for replica in pool.fleet if endpoint_of(replica) == served), None)
        if other is None or other is attempt.replica:
            return attempt
        attempt.fail()
        decision = pool.decider.decide(attempt.decision.prompt, [other.load], monotonic(), 2)
        self._attempt = moved = PickedAttempt(pool, decision, other)
        if self._trace is not None:
            self._trace.moved(other)
        return moved

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Completes the request: the answer is complete."""
        attempt = self._attempt
        if attempt is not None and attempt.finish():
            self._note_answer(attempt.decision.prompt, attempt.usage, attempt.last_at)
            self._end(FINISHED, attempt.status)

    def _leave(self) -> None:
        """Ends the request when the proxy sends no more."""
        attempt = self._attempt
        if self._stage in (_Stage.BODY, _Stage.WAITING) or (attempt is not None and not attempt.over):
            self._pool.metrics.aborted += 1
            self._end("Aborted", _ABORTED)
        self._stage = _Stage.OVER

    def _give_up(self, failure: Failure) -> None:
        """Ends the request when no answer will come, or no more of it."""
        attempt = self._attempt
        assert attempt is not None
        attempt.fail(silent=True)
        if self._trace is not None:
            self._trace.failed(failure)
        self._cut(engines_silent(failure, 1), failure.text)

    def _cut(self, error: RequestError, why: str) -> None:
        """Answers the client, or cuts an answer that has begun: the proxy then resets the client's stream."""
        if self._stage is _Stage.ANSWERING:
            self._pool.metrics.truncated += 1
            log.warning("request %s: answer truncated, %s", self._request_id, why)
            self._end("Truncated", self._attempt.status if self._attempt is not None else 0)
            self._stage = _Stage.OVER
            self._call.end(GrpcStatus.UNAVAILABLE, why)
        else:
            self._fail(error)

    def _break(self, status: GrpcStatus, why: str) -> None:
        """Ends a call in which proxy and picker do not understand each other."""
        log.warning("request %s: the proxy's stream ends, %s", self._request_id, why)
        self._leave()
        self._call.end(status, why)

    def _evict(self) -> None:
        self._fail(_no_memory())

    def _fail(self, error: RequestError) -> None:
        """Sends the client an error, in the form of the router's own."""
        if self._stage is _Stage.OVER:
            return
        pool = self._pool
        self._end(FAILED, error.status, error.code or "other")
        pool.count_error(error)
        answering, self._stage = self.answering, _Stage.OVER
        if answering:
            self._call.end(GrpcStatus.INTERNAL, error.message)
            return
        headers = [(b"content-type", JSON), (b"x-request-id", self._request_id.encode())]
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        self._call.send(immediate(error.status, headers, error.body(self._request.target), error.code or "error"))
        self._call.end()

    def _progress(self) -> Progress | None:
        """Bodies pass unchanged, so the engine's counts are there only where the client asked for them."""
        attempt = self._attempt
        if attempt is None:
            return None
        return Progress(
            status=attempt.status,
            began=attempt.status > 0,
            first_at=attempt.first_at,
            streams=attempt.streams,
            events=attempt.streamed,
            usage=attempt.usage,
            asked=False,
        )

    def _end(self, outcome: str, status: int, error: str | None = None) -> None:
        """Removes the request from the pool's queues and counters, and closes its account."""
        pool, attempt = self._pool, self._attempt
        passes = self._stage is _Stage.ANSWERING and outcome == FAILED  # an engine's error, whose body may follow
        self._call.expire_at(pool.tick + (pool.timeouts.request if passes else pool.timeouts.write))
        self._free_body()
        self._close_account(outcome, self._progress())
        if attempt is not None:
            attempt.abandon()
        self._report(status, outcome, error)

    def _free_body(self) -> None:
        request, self._raw = self._request, b""
        request.body.clear()
        if request.reservation is not None:
            self._pool.body_memory.release(request.reservation)
            request.reservation = None

    def _report(self, status: int, outcome: str, error: str | None) -> None:
        """Ends the trace and writes the line of the access log, where there are such."""
        pool, prompt, attempt = self._pool, self._prompt, self._attempt
        if self._trace is not None:
            tenant = self._tenant_name
            self._trace.end(status, outcome, error, self._record, request_id=self._request_id, tenant=tenant)
            self._trace = None
        if pool.access_log is None:
            return
        pool.log_access(
            self._request,
            status,
            requestId=self._request_id,
            outcome=outcome,
            error=error,
            tenant=self._tenant_name,
            model=None if prompt is None else prompt.model,
            replica=None if attempt is None else attempt.replica.id,
            seconds=round(monotonic() - self.arrived, 6),
            picked=True,
        )


def _no_memory() -> RequestError:
    return overloaded("Too many request bodies are in memory.")
