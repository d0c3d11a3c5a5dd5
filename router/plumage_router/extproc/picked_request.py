"""One request that a proxy asks about: from its headers to the end of the answer that an engine gives the proxy.

headers → body → read → choose a replica → answer the proxy; then the answer's headers, body and end pass by. A decision
is made as for the router's own requests (`proxy/proxied_request.py`), by the same pool: the same bounds, quotas,
queues, policy and errors. What differs: the proxy sends the request, so nobody here can try another
replica. It gets the next best ones as fallbacks, where the pool asks for that.

The body passes unchanged, unless the engine needs another one: the base model instead of an alias, a tenant's salt,
sorted tools. An engine's own key replaces the client's.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from enum import Enum
from typing import Final

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
from plumage_router.fleet.replicas import Load, Replica
from plumage_router.http.errors import (
    Failure,
    RequestError,
    bad_request,
    body_too_large,
    engines_silent,
    internal,
    no_replica,
    overloaded,
    response_away,
    unknown_response,
)
from plumage_router.http.request import SINGLE_HEADERS, Request
from plumage_router.http.time_slicing import LARGE, SlicedWork, Steps, run_now
from plumage_router.http.wire import JSON
from plumage_router.proxy.flow_control import Passage, Spent
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.quotas import Spending
from plumage_router.proxy.tenant_usage import TokensUsed
from plumage_router.proxy.wait_queue import no_replica_yet
from plumage_router.request.prompt import Prompt
from plumage_router.routing.audit import Record

__all__ = ["PickedRequest"]

log = logging.getLogger(__name__)

_MAX_HEADERS: Final = 128  # of a request
_REMOVED: Final[tuple[bytes, ...]] = (
    b"authorization", b"cookie", b"proxy-authorization", b"x-api-key", b"x-data-parallel-rank", b"x-plumage-admin-key",
    b"x-plumage-class", b"x-plumage-explain",
)  # fmt: skip
"""Headers of a client that no engine gets."""
_MODELS: Final = b"/v1/models"
_NO_NAMES: Final = frozenset((b"", b".", b".."))  # segments that a proxy before the engine may resolve
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


class PickedRequest:
    """A `CallHandler`, and an `InFlightRequest` of the pool. `arrived`: when its last byte came.

    fallbacks: endpoints that the proxy gets after the chosen one.
    """

    __slots__ = (
        "_attempt",
        "_call",
        "_chosen",
        "_expected",
        "_explain",
        "_fallbacks",
        "_home",
        "_modes",
        "_passage",
        "_passed",
        "_pool",
        "_prompt",
        "_raw",
        "_reading",
        "_record",
        "_request",
        "_request_id",
        "_routable_at",
        "_spending",
        "_stage",
        "_subset",
        "_trailers",
        "_waited",
        "arrived",
    )

    def __init__(self, pool: PoolState, fallbacks: int, call: Call) -> None:
        self._pool = pool
        self._fallbacks = fallbacks
        self._call = call
        self._stage = _Stage.HEAD
        self._request = Request(call.peer)
        self._request_id = ""
        self._modes = (int(BodyMode.FULL_DUPLEX_STREAMED), int(BodyMode.FULL_DUPLEX_STREAMED))
        self._subset: tuple[str, ...] | None = None
        self._trailers = False  # the request's body was followed by trailers
        self._raw = b""
        self._prompt: Prompt | None = None
        self._reading: SlicedWork | None = None
        self._spending: Spending | None = None
        self._expected = 0  # tokens of the prompt, as far as the router knows
        self._explain = False
        self._home: Replica | None = None  # stores the response that the request continues
        self._passage: Passage | None = None  # in the queue of flow control
        self._passed = self._waited = False
        self._attempt: PickedAttempt | None = None
        self._chosen = ""  # the first endpoint that the proxy got
        self._record: Record | None = None
        self.arrived = self._routable_at = monotonic()
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
        """The request took longer than any request may."""
        self._cut(RequestError(504, "The request took too long.", code="timeout"), "the request took too long")

    def leave_silent_replica(self) -> None:
        """The replica will send no first byte. The proxy sent the request, so only its client can send it again."""
        attempt = self._attempt
        if attempt is not None and not attempt.over:
            self._give_up(Failure.ENGINE_STALLED if attempt.replica.stalled else Failure.HEALTH_CHECK_FAILED)

    def check_timeouts(self, now: float) -> None:
        """A stream must begin and continue in time."""
        attempt, timeouts = self._attempt, self._pool.timeouts
        if attempt is None or attempt.over:
            return
        if attempt.first_at is not None:
            if attempt.streams and now - attempt.last_at > timeouts.idle:
                attempt.abandon()  # not the replica's failure: the proxy waits for a client that does not read, perhaps
                self._cut(engines_silent(Failure.STREAM_TIMEOUT, 1), Failure.STREAM_TIMEOUT.text)
        elif attempt.decision.prompt.stream and now - attempt.sent_at > timeouts.first_byte:
            self._give_up(Failure.FIRST_BYTE_TIMEOUT)

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
        _read_head(request, incoming.headers, pool.limits.max_header_bytes)
        self._request_id = pool.request_id(request)
        refusal = pool.admit(request)
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
        steps = self._admit()
        size = len(request.body)
        pool.in_flight.add(self)
        if size > LARGE:
            self._reading = pool.time_slicer.add(size, steps, self._read_done, tenant=request.sender)
            return
        self._accept(run_now(steps))
        self._route_accepted()

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
                self._end("Failed", number)
        self._call.send(header_answer(Phase.RESPONSE_HEADERS, extra))
        if incoming.end:
            self._complete()

    def _response_body(self, incoming: Incoming) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.body(incoming.body) and attempt.streams:
            assert attempt.first_at is not None
            self._pool.metrics.ttft.observe(attempt.first_at - self.arrived)
        if incoming.end:
            self._complete()
        streamed = self._modes[1] == BodyMode.FULL_DUPLEX_STREAMED
        body = incoming.body if streamed else None
        self._call.send(*body_answer(Phase.RESPONSE_BODY, body, end=incoming.end))

    # -- reading and choosing, as in `proxied_request` ----------------------------------------------------------------

    def _admit(self) -> Steps[Prompt]:
        """Checks the client and the router's load. Returns the steps that read the body."""
        pool, request = self._pool, self._request
        self._explain = pool.wants_explanation(request)
        pool.check_load()
        pool.check_quota(request.tenant)
        if pool.check_media_type(request):
            raise RequestError(404, _NO_FORMS, code="not_found")
        salt = pool.salt_of(request.tenant)
        path = request.target.partition(b"?")[0]
        return pool.reader.steps(path, request.body, None, salt=salt, tenant=pool.auth.enabled, ask_usage=False)

    def _read_done(self, prompt: Prompt | None, error: Exception | None) -> None:
        """The body was read in slices."""
        self._reading = None
        try:
            if error is not None:
                raise error
            assert prompt is not None
            self._accept(prompt)
            self._route_accepted()
        except RequestError as wrong:
            self._fail(wrong)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._fail(internal())

    def _accept(self, prompt: Prompt) -> None:
        """The body was read. Raises RequestError if it is quarantined, or over its tenant's quota."""
        self._prompt = prompt
        self._raw = self._request.body.whole()
        self._pool.check_quarantine(prompt)
        self._expected = expected = self._pool.tokens_of_prompt(prompt)
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
        """Chooses a replica for the proxy, unless the request must wait for one."""
        try:
            now = monotonic()
            candidates = self._candidates(now)
            if not candidates:
                self._without_replica(now)
                return
            if self._passage is not None and not self._passed:
                allowed = self._pool.flow_control.enter(self, self._passage, candidates, now)
                self._passed, self._waited = allowed is not None, self._waited or allowed is None
                if allowed is None:
                    return
                candidates = allowed
            elif self._passage is not None:
                candidates = self._pool.flow_control.with_room(candidates, now)
            self._pick(candidates, now)
        except RequestError as error:
            self._fail(error)
        except Exception:
            log.exception("request %s: routing it failed", self._request_id)
            self._fail(internal())

    def _candidates(self, now: float) -> Sequence[Load]:
        """The available replicas that can answer, of those that the proxy allows."""
        pool, prompt = self._pool, self._prompt
        candidates = pool.fleet.candidates(now, only=pool.with_adapter(prompt.adapter) if prompt is not None else None)
        if self._subset is not None:
            candidates = in_subset(pool.fleet, candidates, self._subset)
        if prompt is None or prompt.previous is None:
            return candidates
        if self._home is None or self._home.gone:
            self._home = pool.stores_previous(prompt)
        return [load for load in candidates if self._home is not None and load is self._home.load]

    def _pick(self, candidates: Sequence[Load], now: float) -> None:
        pool, prompt = self._pool, self._prompt
        assert prompt is not None
        pool.retry_budget.sent(now)
        decision = pool.decider.decide(prompt, candidates, now)
        replica = pool.fleet.at(decision.ticket.slot)
        self._attempt = PickedAttempt(pool, decision, replica)
        began = now if self._waited else self.arrived
        seconds = monotonic() - began
        pool.metrics.decision.observe(seconds)
        record = self._record = pool.record_decision(decision, self._request_id, self._request.tenant)
        record.prefix_break = pool.first_decision(decision, now)
        record.decision_seconds = seconds
        record.waited_seconds = now - self._routable_at if self._waited else 0.0
        self._chosen = endpoint_of(replica)
        others = fallbacks(pool.fleet, decision, self._fallbacks) if prompt.previous is None else ()
        payload = pool.named_response(prompt, replica)
        pool.free(prompt)
        self._answer_proxy(replica, ",".join((self._chosen, *others)), payload)

    def _answer_proxy(self, replica: Replica, destination: str, payload: bytes) -> None:
        """Sends destination and body to the proxy."""
        self._stage = _Stage.PICKED
        key = self._pool.engine_keys.of(replica.member.url)
        changed = payload is not self._raw
        headers, removed = self._engine_headers(key, changed=changed)
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

    def _engine_headers(self, key: bytes | None, *, changed: bool) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """What the engine gets: its own key, the request's id, and none of the client's keys."""
        given = self._request.headers
        headers = [] if key is None else [(b"authorization", b"Bearer " + key)]
        request_id = self._request_id.encode()
        if given.get(b"x-request-id") != request_id:
            headers.append((b"x-request-id", request_id))
        removed = [name for name in _REMOVED if name in given and (key is None or name != b"authorization")]
        if changed and b"content-length" in given:
            removed.append(b"content-length")
        return headers, removed

    def _pass_on(self) -> None:
        """A list of models: any replica answers it. Nothing else is sent to an engine."""
        pool, request = self._pool, self._request
        path = request.target.partition(b"?")[0]
        names_model = (
            path.startswith(_MODELS + b"/") and not _NO_NAMES.intersection(path.split(b"/")[3:]) and b"%" not in path
        )
        if request.method not in (b"GET", b"HEAD") or not (path == _MODELS or names_model):
            raise RequestError(404, _NOT_FOUND, code="not_found")
        pool.authenticate(request)
        now = monotonic()
        candidates = self._candidates(now)
        if not candidates:
            raise no_replica(self._why_none(now))
        replica = pool.fleet.at(min(candidates, key=lambda load: load.routed).slot)
        key = pool.engine_keys.of(replica.member.url)
        headers, removed = self._engine_headers(key, changed=False)
        self._stage = _Stage.PICKED
        self._call.expire_at(pool.tick + pool.timeouts.request)
        self._call.send(header_answer(Phase.REQUEST_HEADERS, headers, removed, endpoint_of(replica).encode()))

    def _why_none(self, now: float) -> str:
        if self._subset is not None and self._pool.fleet.candidates(now):
            return "the proxy allows none of those that are available"
        return self._pool.fleet.why_none(now)

    def _without_replica(self, now: float) -> None:
        """Waits if possible."""
        pool, prompt = self._pool, self._prompt
        if prompt is not None and prompt.previous is not None and self._home is None:
            raise unknown_response()
        if pool.wait_queue.add(self, now):
            self._waited = True
        elif self._home is not None:
            raise response_away(self._home.reason(now) or "it is busy", "previous_response_id")
        elif prompt is not None and prompt.adapter and self._lacks_adapter(prompt, now):
            raise pool.without_adapter(prompt, now)
        else:
            why = self._why_none(now)
            raise no_replica_yet(why) if pool.wait_queue.enabled else no_replica(why)

    def _lacks_adapter(self, prompt: Prompt, now: float) -> bool:
        """Whether replicas are available, and none that has loaded the prompt's adapter."""
        fleet, only = self._pool.fleet, self._pool.with_adapter(prompt.adapter)
        return bool(fleet.candidates(now)) and not fleet.candidates(now, only=only)

    def _moved(self, attempt: PickedAttempt, served: str) -> PickedAttempt:
        """The proxy sent the request to a fallback: its replica gets the account."""
        pool = self._pool
        other = next((replica for replica in pool.fleet if endpoint_of(replica) == served), None)
        if other is None or other is attempt.replica:
            return attempt
        attempt.fail()
        decision = pool.decider.decide(attempt.decision.prompt, [other.load], monotonic(), 2)
        self._attempt = moved = PickedAttempt(pool, decision, other)
        return moved

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """The answer is complete."""
        pool, attempt, record = self._pool, self._attempt, self._record
        if attempt is None or not attempt.finish():
            return
        pool.clear_quarantine(attempt.decision.prompt)
        if attempt.decision.prompt.measured:
            pool.metrics.latency.observe(attempt.last_at - self.arrived)
        if record is not None:
            usage = attempt.usage
            record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            record.output_tokens = usage.output_tokens
        self._end("Finished", attempt.status)

    def _leave(self) -> None:
        """The proxy sends no more."""
        attempt = self._attempt
        if self._stage in (_Stage.BODY, _Stage.WAITING) or (attempt is not None and not attempt.over):
            self._pool.metrics.aborted += 1
            self._end("Aborted", _ABORTED)
        self._stage = _Stage.OVER

    def _give_up(self, failure: Failure) -> None:
        """No answer will come, or no more of it."""
        attempt = self._attempt
        assert attempt is not None
        attempt.fail(silent=True)
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
        """The proxy and this picker do not understand each other."""
        log.warning("request %s: the proxy's stream ends, %s", self._request_id, why)
        self._leave()
        self._call.end(status, why)

    def _evict(self) -> None:
        self._fail(_no_memory())

    def _fail(self, error: RequestError) -> None:
        """The client gets an error, in the form of the router's own."""
        if self._stage is _Stage.OVER:
            return
        pool = self._pool
        self._end("Failed", error.status, error.code or "other")
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

    def _end(self, outcome: str, status: int, error: str | None = None) -> None:
        """Removes the request from the pool's books and closes its account."""
        pool, attempt, record = self._pool, self._attempt, self._record
        pool.in_flight.discard(self)
        self._call.expire_at(pool.tick + pool.timeouts.write)  # for the proxy to end the call
        self._free_body()
        if self._waited:
            pool.wait_queue.remove(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._passage is not None:
            pool.flow_control.end(self, self._spent(self._passage, outcome))
            self._passage = None
        self._count_tokens(outcome)
        if attempt is not None:
            attempt.abandon()
            if record is not None:
                record.outcome = outcome
                if attempt.first_at is not None:
                    record.ttft = attempt.first_at - self.arrived if attempt.streams else None
                    record.latency = monotonic() - self.arrived
        self._report(status, outcome, error)

    def _free_body(self) -> None:
        request, self._raw = self._request, b""
        request.body.clear()
        if request.reservation is not None:
            self._pool.body_memory.release(request.reservation)
            request.reservation = None

    def _spent(self, passage: Passage, outcome: str) -> Spent | None:
        """What the engine computed, for flow control; None if nobody knows. An event of a stream counts as a token."""
        attempt = self._attempt
        if attempt is None or outcome == "Failed" or attempt.status >= 400:
            return Spent(0, 0, complete=False)
        usage = attempt.usage
        if outcome == "Finished":
            if usage.prompt_tokens is None:
                return None
            computed = max(0, usage.prompt_tokens - (usage.cached_tokens or 0))
            return Spent(computed, usage.output_tokens or 0, complete=True)
        return Spent(passage.prompt_tokens, attempt.streamed, complete=False) if attempt.first_at else None

    def _count_tokens(self, outcome: str) -> None:
        """Counts what the request used for its tenant: the engine's counts, else the router's estimate."""
        attempt, prompt, used = self._attempt, self._prompt, None
        background = prompt is not None and prompt.background
        if attempt is not None and outcome != "Failed" and attempt.status < 400:
            usage = attempt.usage
            if usage.prompt_tokens is not None and not background:
                used = TokensUsed(
                    usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or 0, estimated=False
                )
            else:
                output = attempt.streamed if attempt.streams else 0
                if prompt is not None and background:
                    output = self._pool.tokens_of_answer(prompt)
                used = TokensUsed(self._expected, 0, output, estimated=True)
            answered = outcome == "Finished" or attempt.status > 0
            if answered and prompt is not None and prompt.uses_device:
                self._pool.count_usage(self._request.tenant, prompt.model, used)
        spending, self._spending = self._spending, None
        if spending is None:
            return
        # An answer that is no stream has not reported what it used. One that did not begin used the prompt at most.
        unknown = (
            used is not None and used.estimated and attempt is not None and not attempt.streams and attempt.status > 0
        )
        spending.end(None if unknown else used.total if used is not None else 0)

    def _report(self, status: int, outcome: str, error: str | None) -> None:
        """Writes the line of the access log, if there is one."""
        pool, prompt, attempt = self._pool, self._prompt, self._attempt
        if pool.access_log is None:
            return
        tenant = (self._request.tenant.name if self._request.tenant else "") or None
        pool.log_access(
            self._request,
            status,
            requestId=self._request_id,
            outcome=outcome,
            error=error,
            tenant=tenant,
            model=None if prompt is None else prompt.model,
            replica=None if attempt is None else attempt.replica.id,
            seconds=round(monotonic() - self.arrived, 6),
            picked=True,
        )


def _no_memory() -> RequestError:
    return overloaded("Too many request bodies are in memory.")


def _read_head(request: Request, headers: Sequence[tuple[bytes, bytes]], most_bytes: int) -> None:
    """Sets method, target and headers. Raises RequestError for too many, and for one that may not be repeated."""
    size = sum([len(name) + len(value) + 4 for name, value in headers])
    if len(headers) > _MAX_HEADERS or size > most_bytes:
        raise RequestError(431, "The request's headers are too large.", code="headers_too_large")
    found = request.headers
    for name, value in headers:
        if name == b":method":
            request.method = value
        elif name == b":path":
            request.target = value
        elif name == b":authority":
            found[b"host"] = value
        elif name not in found:
            found[name] = value
        elif name in SINGLE_HEADERS:
            message = f"The header {name.decode('latin-1')} is repeated."
            raise bad_request(message, code="repeated_header")
        else:
            found[name] += b", " + value
