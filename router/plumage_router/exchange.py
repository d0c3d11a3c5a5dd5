"""One completion request, from its last byte in to its last byte out.

authenticate → read → decide → send; on a failure before the first body byte, decide again without the replicas tried.
The exchange owns the client's side; each try on a replica is an `Attempt`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plumage_router.attempt import Attempt, Cause
from plumage_router.audit import Record
from plumage_router.auth import Tenant
from plumage_router.client import ClientConnection
from plumage_router.clock import monotonic
from plumage_router.errors import (
    RequestError,
    engines_failed,
    error_object,
    fell_silent,
    internal,
    no_replica,
    upstream_failed,
)
from plumage_router.hold import no_replica_yet
from plumage_router.pieces import LARGE, Steps, Work, at_once
from plumage_router.prompt import Prompt
from plumage_router.replicas import Replica
from plumage_router.request import Request
from plumage_router.wire import JSON, LAST_CHUNK, chunk, response_head

if TYPE_CHECKING:
    from plumage_router.gateway import Gateway

__all__ = ["Exchange"]

log = logging.getLogger(__name__)

CLIENT_LEFT = 499  # in the access log alone: no answer began before the client went (nginx' number)
_FORWARDED = frozenset((b"traceparent", b"tracestate", b"accept"))
_PASSED_BACK = frozenset((b"cache-control", b"retry-after", b"x-accel-buffering"))
_CUT_SHORT = b"data: %b\n\n" % error_object(502, "The engine failed before its answer was whole.", code="truncated")


class Exchange:
    """A `Handler` of one client connection and the `Course` of its attempts. body: the request's, where it was parsed
    to find out which pool it is for."""

    __slots__ = (
        "_attempt",
        "_body",
        "_chunked",
        "_client",
        "_doubted",
        "_events",
        "_explain",
        "_failed_replicas",
        "_failures",
        "_gateway",
        "_heard",
        "_held",
        "_keep_alive",
        "_output_tokens",
        "_paused",
        "_prompt",
        "_reading",
        "_record",
        "_request",
        "_request_id",
        "_status",
        "_tenant",
        "_tried",
        "arrived",
        "decider",
        "fleet",
        "metrics",
    )

    def __init__(
        self, gateway: Gateway, request: Request, client: ClientConnection, body: Mapping[str, Any] | None = None
    ) -> None:
        self._gateway = gateway
        self._body = body
        self._request = request
        self._client = client
        self.decider = gateway.decider
        self.fleet = gateway.fleet
        self.metrics = gateway.metrics
        self._attempt: Attempt | None = None
        self._record: Record | None = None
        self._tried: list[Replica] = []
        self._failures: list[tuple[str, str]] = []
        self._failed_replicas = 0  # of those that were sent the request
        self._doubted: list[Replica] = []  # their breakers count the failure unless the request is the cause
        self._held = False
        self._keep_alive = request.keep_alive
        self._chunked = False
        self._events = False
        self._paused = False
        self._output_tokens: int | None = None
        self._explain = False
        self._prompt: Prompt | None = None
        self._reading: Work | None = None
        self._tenant: Tenant | None = None
        self._request_id = ""
        self._status = 0  # of the answer that began
        self.arrived = self._heard = monotonic()

    @property
    def replica(self) -> Replica | None:
        """Where the request is now."""
        return self._attempt.replica if self._attempt is not None else None

    @property
    def answering(self) -> bool:
        """Did the client get its first byte?"""
        return self._attempt is not None and self._attempt.started

    # -- the client's side --------------------------------------------------------------------------------------------

    def start(self) -> None:
        gateway = self._gateway
        self.metrics.requests += 1
        try:
            self._request_id = gateway.request_id(self._request)
            steps = self._admit()
            if len(self._request.body) > LARGE:
                self._read_in_pieces(steps)
                return
            self._use(at_once(steps))
        except RequestError as error:
            self._refuse(error)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._refuse(internal())
        else:
            gateway.flights.add(self)
            self._try()

    def pause(self) -> None:
        self._paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        self._paused = False
        if self._attempt is not None:
            self._attempt.resume()

    def abort(self) -> None:
        self._settle(guilty=True)  # as far as is known
        self.metrics.aborted += 1
        self._end("Aborted")

    def expire(self) -> None:
        """The request took longer than any may."""
        if self.answering:
            self._truncate("it took too long")
        else:
            self._fail(RequestError(504, "The request took too long.", code="timeout"))

    def leave_silent(self) -> None:
        """No first byte will come from there: try elsewhere, unless replica after replica falls silent with it."""
        if self._attempt is not None:
            stalled = self.replica is not None and self.replica.stalled
            self._attempt.give_up("its engine is stalled" if stalled else "its health check fails")

    def check_pace(self, now: float) -> None:
        """A stream must begin and go on in time; while the client does not read, the engine is not to blame."""
        attempt, timeouts = self._attempt, self._gateway.timeouts
        if attempt is None or self._paused:
            self._heard = now
        elif attempt.started:
            if self._events and now - self._heard > timeouts.idle:
                attempt.give_up("its stream stopped")
        elif attempt.decision.prompt.stream and now - attempt.sent_at > timeouts.first_byte:
            attempt.give_up("its first byte is late")

    def can_go_on(self, now: float) -> bool:
        """Of a request that was held: is there a replica that it was not tried on?"""
        return bool(self.fleet.candidates(now, self._tried))

    def go_on(self) -> None:
        """A replica can be chosen: the wait for one is over."""
        self._try()

    def turn_away(self, error: RequestError) -> None:
        """The wait for a replica was in vain."""
        self._fail(error)

    # -- the attempts' side -------------------------------------------------------------------------------------------

    def request_for(self, replica: Replica) -> tuple[bytes, bytes]:
        assert self._prompt is not None
        payload = self._prompt.payload
        head = self._gateway.upstream_head(self._prompt.path, replica)
        identified = b"%bx-request-id: %b\r\n%bcontent-length: %d\r\n\r\n"
        forwarded = _lines(_FORWARDED, self._request.headers)
        return identified % (head, self._request_id.encode(), forwarded, len(payload)), payload

    def key_of(self, replica: Replica) -> bytes | None:
        return self._gateway.engine_keys.of(replica.member.url)

    def other_key(self, replica: Replica, tried: Sequence[bytes]) -> bool:
        return self._gateway.engine_keys.refused(replica.member.url, tried) is not None

    def begin(self, attempt: Attempt, status: int, headers: dict[bytes, bytes], data: bytes) -> None:
        kind = headers.get(b"content-type", JSON)
        self._events = kind.startswith(b"text/event-stream")
        length = None if self._events or b"content-length" not in headers else int(headers[b"content-length"])
        self._chunked = length is None and not self._request.http10
        self._keep_alive = self._keep_alive and self._gateway.keeps_alive and (length is not None or self._chunked)
        passed = _lines(_PASSED_BACK, headers)
        lines = b"content-type: %b\r\nx-request-id: %b\r\n%b" % (kind, self._request_id.encode(), passed)
        if self._explain and self._record is not None:
            lines += b"x-plumage-explain: %b\r\n" % _header_json(self._record.document())
        head = response_head(
            status, lines, self._gateway.date, length=length, keep_alive=self._keep_alive, chunked=self._chunked
        )
        self._heard = attempt.first_at
        self._settle(guilty=False)
        self._status = status
        self.metrics.responses[status] += 1
        if attempt.streams:
            self.metrics.ttft.observe(attempt.first_at - self.arrived)
        if data:
            data = chunk(data) if self._chunked else data
        self._client.transport.write(head + data)
        self._client.free_body()
        if self._prompt is not None:
            self._gateway.free(self._prompt)

    def more(self, data: bytes) -> None:
        self._heard = self._gateway.tick
        self._client.transport.write(chunk(data) if self._chunked else data)

    def complete(self, attempt: Attempt) -> None:
        if self._chunked:
            self._client.transport.write(LAST_CHUNK)
        self._gateway.clear(attempt.decision.prompt)
        self._learn(attempt)
        self._end("Finished")
        self._client.done(keep_alive=self._keep_alive)

    def attempt_failed(self, attempt: Attempt, reason: str, cause: Cause) -> None:
        self._failures.append((attempt.replica.id, reason))
        self._tried.append(attempt.replica)
        if not attempt.charged:
            self._doubted.append(attempt.replica)
        refused = cause is Cause.DOUBT and self._gateway.strike(attempt.decision.prompt, attempt.replica)
        self._failed_replicas += cause in (Cause.DOUBT, Cause.SILENT)
        if attempt.started:
            self._truncate(reason)
        elif refused or self._failed_replicas >= self._gateway.limits.max_failed_replicas:
            self._settle(guilty=True)
            told = fell_silent if cause is Cause.SILENT else engines_failed
            self._fail(told(reason, len(self._failures)))
        elif len(self._failures) >= self._gateway.limits.max_attempts:
            self._fail(upstream_failed(reason, len(self._failures)))
        else:
            self.metrics.retries[reason] += 1
            self._try()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _read_in_pieces(self, steps: Steps[Prompt]) -> None:
        """Other requests go on meanwhile."""
        gateway = self._gateway
        gateway.flights.add(self)
        self._reading = gateway.pieces.add(len(self._request.body), steps, self._read)

    def _read(self, prompt: Prompt | None, error: Exception | None) -> None:
        """The body was read in pieces."""
        self._reading = None
        try:
            if error is not None:
                raise error
            assert prompt is not None
            self._use(prompt)
        except RequestError as wrong:
            self._gateway.flights.discard(self)
            self._refuse(wrong)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._gateway.flights.discard(self)
            self._refuse(internal())
        else:
            self._try()

    def _use(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._gateway.check_quarantine(prompt)

    def _admit(self) -> Steps[Prompt]:
        """Who asks, and whether there is room; how the body is read."""
        gateway, request = self._gateway, self._request
        self._tenant = tenant = gateway.authenticate(request)
        self._explain = gateway.wants_explanation(request)
        gateway.check_load()
        gateway.check_media_type(request)
        path, body, self._body = request.target.partition(b"?")[0], self._body, None
        salt = gateway.salts.of(tenant)
        return gateway.reader.steps(path, request.body, body, salt=salt, tenant=gateway.auth.enabled)

    def _try(self) -> None:
        try:
            self._route()
        except Exception:
            log.exception("request %s: routing it failed", self._request_id)
            self._fail(internal())

    def _route(self) -> None:
        now = monotonic()
        candidates = self.fleet.candidates(now, self._tried)
        if not candidates:
            self._without_replica(now)
            return
        assert self._prompt is not None
        decision = self.decider.decide(self._prompt, candidates, now, len(self._failures) + 1)
        attempt = self._attempt = Attempt(self, decision, self.fleet.at(decision.ticket.slot))
        decided = monotonic()
        record = self._record
        if record is not None:
            record.outcome = "Retried"
        first = record is None and not self._held
        self.metrics.decision.observe(decided - (self.arrived if first else now))
        if record is None:
            self._gateway.reuse.seen(self._prompt.chunks)
        record = self._record = self._gateway.note(decision, self._request_id, self._tenant)
        record.decision_seconds = decided - (now if self._held else self.arrived)
        record.failures = self._failures
        if self._paused:
            attempt.pause()
        attempt.start()

    def _without_replica(self, now: float) -> None:
        """Waits where there is room to, unless some replica is fit and failed this very request."""
        if not self.fleet.candidates(now) and self._gateway.hold.take(self, now):
            self._held, self._attempt = True, None
        else:
            self._settle(guilty=True)  # a breaker spares requests a bad replica where there is another: here is none
            self._fail(self._nobody(now))

    def _nobody(self, now: float) -> RequestError:
        if self._failures:
            return upstream_failed(self._failures[-1][1], len(self._failures))
        why = self.fleet.why_none(now)
        return no_replica_yet(why) if self._gateway.hold.open else no_replica(why)

    def _learn(self, attempt: Attempt) -> None:
        usage, ticket, metrics, record = attempt.usage.usage, attempt.decision.ticket, self.metrics, self._record
        metrics.latency.observe(attempt.last_at - self.arrived)
        if attempt.streams and ticket.predicted_ttft is not None:
            metrics.ttft_error.observe(attempt.first_at - attempt.sent_at - ticket.predicted_ttft)
        if ticket.predicted_latency is not None:
            metrics.latency_error.observe(attempt.last_at - attempt.sent_at - ticket.predicted_latency)
        totals = attempt.replica.totals
        totals.predicted_hit_tokens += int(ticket.hit_tokens)
        metrics.predicted_hit_tokens += ticket.hit_tokens
        if usage.prompt_tokens is not None:
            metrics.prompt_tokens += usage.prompt_tokens
            totals.prompt_tokens += usage.prompt_tokens
        self._output_tokens = usage.output_tokens
        if usage.output_tokens is not None:
            metrics.output_tokens += usage.output_tokens
            totals.output_tokens += usage.output_tokens
        if usage.cached_tokens is not None:
            metrics.actual_hit_tokens += usage.cached_tokens
            if attempt.decision.prompt.plain:
                metrics.hit_error.observe(usage.cached_tokens - ticket.hit_tokens)
                totals.hit_error += int(ticket.hit_tokens) - usage.cached_tokens
                totals.compared_tokens += usage.prompt_tokens or 0
            totals.hit_tokens += usage.cached_tokens
        else:
            metrics.usage_missing += 1
        if record is not None:
            record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens

    def _settle(self, *, guilty: bool) -> None:
        """Whose failures they were is known: the request's, where it is `guilty`, or the replicas'."""
        now = monotonic()
        for replica in self._doubted:
            if guilty:
                replica.breaker.abandoned()
            else:
                replica.breaker.failed(now)
        if self._doubted:
            self._doubted = []
            self.fleet.changed()

    def _end(self, outcome: str) -> None:
        """Out of the books; the attempt that is still open is given up."""
        self._gateway.flights.discard(self)
        self._gateway.hold.forget(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        attempt, record = self._attempt, self._record
        self._attempt = None
        if attempt is not None:
            attempt.abandon()
        if record is not None:
            record.outcome = outcome
            if attempt is not None and attempt.started:
                record.ttft = attempt.first_at - self.arrived if attempt.streams else None
                record.latency = monotonic() - self.arrived
        if outcome != "Failed" and self._gateway.access is not None:
            self._log(self._status or CLIENT_LEFT, outcome)

    def _truncate(self, reason: str) -> None:
        """The client has a part of the answer: say so in the stream if it can be said, and cut the connection."""
        self.metrics.truncated += 1
        log.warning("request %s: cut short, %s", self._request_id, reason)
        if self._events:
            self.more(_CUT_SHORT)
        self._end("Truncated")
        self._client.cut()

    def _fail(self, error: RequestError) -> None:
        self._settle(guilty=len(self._doubted) > 1)
        self._end("Failed")
        self._refuse(error)

    def _log(self, status: int, outcome: str, error: str | None = None) -> None:
        """The line of the access log."""
        prompt, record, tenant = self._prompt, self._record, self._tenant
        self._gateway.log_access(
            self._request,
            status,
            requestId=self._request_id,
            outcome=outcome,
            error=error,
            tenant=tenant.name if tenant is not None and tenant.name else None,
            model=prompt.model if prompt is not None else None,
            stream=prompt.stream if prompt is not None else None,
            replica=record.replica if record is not None else None,
            failed=[replica for replica, _ in self._failures] or None,
            seconds=round(monotonic() - self.arrived, 6),
            ttftSeconds=round(record.ttft, 6) if record is not None and record.ttft is not None else None,
            promptTokens=record.prompt_tokens if record is not None else None,
            cachedTokens=record.cached_tokens if record is not None else None,
            outputTokens=self._output_tokens,
        )

    def _refuse(self, error: RequestError) -> None:
        if self._gateway.access is not None:
            self._log(error.status, "Failed", error.code or "other")
        self._gateway.count_error(error)
        self._client.respond(
            error.status,
            self._gateway.error_headers(error, self._request_id),
            error.body(),
            keep_alive=self._keep_alive and self._gateway.keeps_alive,
        )


def _lines(names: frozenset[bytes], headers: dict[bytes, bytes]) -> bytes:
    """Those of the headers, as lines; most requests and answers have none of them."""
    if names.isdisjoint(headers):
        return b""
    return b"".join([b"%b: %b\r\n" % (name, headers[name]) for name in sorted(names & headers.keys())])


def _header_json(document: dict[str, Any]) -> bytes:
    """JSON that may stand in a header: one line of ASCII."""
    return json.dumps(document, separators=(",", ":")).encode("ascii")
