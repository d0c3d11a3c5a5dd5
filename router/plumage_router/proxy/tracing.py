"""Traces of requests: OpenTelemetry spans, and the trace context that engines get (W3C Trace Context).

A request with a `traceparent` is traced if its client traced it. Of the other requests a share is traced. A request
has one span, and each attempt on a replica has another one below it. The engine gets the attempt's id, so its own
spans are below that. A copy for another pool has a trace of its own, which links to its request's span. Spans have the
names of OpenTelemetry's conventions for HTTP and generative AI where there are such. They contain no prompt, answer,
key or query string.

A thread exports the spans. While `MAX_SPANS` are open or wait for it, no span begins.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from plumage.settings.router_config import TracingConfig
from plumage_router.fleet.replicas import Replica
from plumage_router.http.errors import Failure
from plumage_router.http.paths import CHAT_PATH, COMPLETION_PATH, EMBEDDINGS_PATH, MESSAGES_PATH, RESPONSES_PATH
from plumage_router.http.request import Request
from plumage_router.routing.decider import Decision
from plumage_router.routing.decision_log import Record

__all__ = ["MAX_SPANS", "RequestTrace", "Tracing"]

log = logging.getLogger(__name__)

MAX_SPANS: Final = 4_096  # open, or waiting for their export: 14 MB
_BATCH: Final = 32  # spans: encoding them takes the interpreter for about two milliseconds
_EVERY_MS: Final = 1_000.0  # between two exports of less than a batch
_EXPORT_TIMEOUT: Final = 10.0  # seconds
# Set here, since the SDK would take them from the environment.
_LIMITS: Final = SpanLimits(
    max_attributes=64, max_span_attributes=64, max_events=8, max_event_attributes=8, max_links=1, max_link_attributes=1,
    max_attribute_length=1024, max_span_attribute_length=1024,
)  # fmt: skip
# Of a version above 00 only the beginning is known (W3C Trace Context, section 3.2.2).
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_OPERATIONS: Final = {
    CHAT_PATH: "chat", MESSAGES_PATH: "chat", RESPONSES_PATH: "chat", COMPLETION_PATH: "text_completion",
    EMBEDDINGS_PATH: "embeddings",
}  # fmt: skip


class Tracing:
    """Begins the traces of a router's requests, and exports their spans until `close`.

    instance: name of this router. exporter: in tests, instead of one for the collector.
    `exported`, `failed`: spans. `skipped`: requests that are not traced because of `MAX_SPANS`.
    """

    def __init__(
        self, config: TracingConfig, *, instance: str, rng: random.Random, exporter: SpanExporter | None = None
    ) -> None:
        self.exported = self.failed = self.skipped = 0
        self._rng = rng
        self._share = config.sampling_rate_per_million / 1e6
        self._begun = 0  # spans
        own = version("plumage-llm")
        resource = Resource.create(
            {"service.name": config.service, "service.instance.id": instance, "service.version": own}
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, span_limits=_LIMITS
        )
        self._tracer = self._provider.get_tracer("plumage_router", own)
        self._off = isinstance(self._tracer, NoOpTracer)
        if self._off:
            log.warning("OTEL_SDK_DISABLED is set: no request is traced")
        counted = _CountedExporter(self, exporter or OTLPSpanExporter(config.url, timeout=_EXPORT_TIMEOUT))
        self._provider.add_span_processor(
            BatchSpanProcessor(
                counted, max_queue_size=2 * MAX_SPANS, schedule_delay_millis=_EVERY_MS, max_export_batch_size=_BATCH
            )
        )

    def begin(self, request: Request, pool: str) -> RequestTrace | None:
        """Begins the trace of a request that arrived now; None for most."""
        header = request.headers.get(b"traceparent")
        client = None if header is None else _client_span(header)
        if client is None:
            if self._rng.random() >= self._share:
                return None
        elif not client.trace_flags.sampled:
            return None
        if self._off:
            return None
        if self._full:
            self.skipped += 1
            if client is not None:  # the engine shall not trace it either
                request.headers[b"traceparent"] = b"00-%032x-%016x-00" % (client.trace_id, client.span_id)
            return None
        # Without the client's `tracestate`: the engine gets the header itself, and spans would keep it.
        parent = Context() if client is None else set_span_in_context(NonRecordingSpan(client), Context())
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        attributes = {"http.request.method": "POST", "url.path": path, "http.route": path, "plumage.pool": pool}
        self._begun += 1
        span = self._tracer.start_span(f"POST {path}", parent, SpanKind.SERVER, attributes)
        return RequestTrace(self, span, continues=client is not None)

    def begin_copy(self, original: RequestTrace, path: str, pool: str) -> RequestTrace | None:
        """The trace of a copy for another pool, with a link to the span of the traced request; None while there are too
        many spans."""
        if self._full:
            self.skipped += 1
            return None
        attributes = {"http.request.method": "POST", "url.path": path, "http.route": path, "plumage.pool": pool}
        self._begun += 1
        link = Link(original.context)
        span = self._tracer.start_span(f"COPY {path}", Context(), SpanKind.INTERNAL, attributes, links=[link])
        return RequestTrace(self, span, continues=False)

    def start_attempt(self, parent: Span, name: str, attributes: Mapping[str, AttributeValue]) -> Span | None:
        """Returns the span of an attempt, below the request's; None while there are too many."""
        if self._full:
            return None
        self._begun += 1
        return self._tracer.start_span(name, set_span_in_context(parent, Context()), SpanKind.CLIENT, attributes)

    def close(self, wait: float) -> None:
        """Exports the last spans, and waits so many seconds for that."""
        thread = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(wait)

    @property
    def _full(self) -> bool:
        return self._begun - self.exported - self.failed >= MAX_SPANS


class RequestTrace:
    """The spans of one request. An attempt's span ends in `failed`, with the next attempt, or with the request.

    `continues`: the client began the trace, so its `tracestate` belongs to it.
    """

    __slots__ = ("_attempt", "_span", "_tracing", "continues")

    def __init__(self, tracing: Tracing, span: Span, *, continues: bool) -> None:
        self.continues = continues
        self._tracing = tracing
        self._span = span
        self._attempt: Span | None = None

    @property
    def context(self) -> SpanContext:
        """Of the request's own span."""
        return self._span.get_span_context()

    def attempt(self, decision: Decision, replica: Replica, *, policy: str, waited: float) -> bytes:
        """Begins the span of an attempt. Returns the `traceparent` with which the engine's spans join the trace.

        waited: seconds from the request's last byte, or from the failure of the attempt before, to the decision.
        """
        prompt, ticket = decision.prompt, decision.ticket
        host, port = replica.member.address()
        operation = _OPERATIONS.get(prompt.path, prompt.path.decode("ascii", "replace").rpartition("/")[2])
        attributes = _given({
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": prompt.model,
            "server.address": host,
            "server.port": port,
            "plumage.replica": replica.id,
            "plumage.policy": policy,
            "plumage.attempt": decision.attempt,
            "plumage.candidates": decision.candidates,
            "plumage.wait_seconds": round(waited, 6),
            "plumage.predicted_prompt_tokens": round(decision.tokens),
            "plumage.predicted_cached_tokens": round(ticket.hit_tokens),
            "plumage.predicted_ttft_seconds": ticket.predicted_ttft,
            "plumage.predicted_latency_seconds": ticket.predicted_latency,
        })  # fmt: skip
        self._end_attempt()
        self._attempt = self._tracing.start_attempt(self._span, f"{operation} {prompt.model}", attributes)
        context = (self._attempt or self._span).get_span_context()
        return b"00-%032x-%016x-01" % (context.trace_id, context.span_id)

    def moved(self, replica: Replica) -> None:
        """Notes that a proxy sent the attempt to one of its fallbacks."""
        if self._attempt is not None:
            host, port = replica.member.address()
            self._attempt.set_attributes({"plumage.replica": replica.id, "server.address": host, "server.port": port})

    def first_byte(self, status: int, *, streams: bool) -> None:
        """Notes that the answer began. streams: its first byte is its first token."""
        if self._attempt is not None:
            self._attempt.set_attribute("http.response.status_code", status)
            self._attempt.add_event("first token" if streams else "first byte")

    def failed(self, failure: Failure) -> None:
        """Ends the attempt, which failed; another one may follow."""
        if self._attempt is not None:
            self._attempt.set_attribute("error.type", failure)
            self._attempt.set_status(Status(StatusCode.ERROR, failure.text))
            self._end_attempt()

    def end(self, status: int, outcome: str, error: str | None, record: Record | None, **more: str | None) -> None:
        """Ends the request's span. error: the code of its error. more: further attributes, under `plumage.`."""
        broken = status >= 500 or outcome == "Truncated"
        error = error or (outcome.lower() if outcome != "Finished" else None)
        attributes: dict[str, AttributeValue | None] = {
            "http.response.status_code": status,
            "error.type": error,
            "plumage.outcome": outcome,
            **{f"plumage.{name}": value for name, value in more.items()},
        }
        tokens: dict[str, AttributeValue | None] = {}
        if record is not None:
            tokens = {
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
                "gen_ai.usage.output_tokens": record.output_tokens,
            }
            attributes |= {**tokens, "plumage.replica": record.replica, "plumage.ttft_seconds": record.ttft}
        if self._attempt is not None:  # the router or the client gave up on it, unless the request finished
            self._attempt.set_attributes(_given({**tokens, "error.type": error}))
            if broken:
                self._attempt.set_status(Status(StatusCode.ERROR, error))
        self._end_attempt()
        self._span.set_attributes(_given(attributes))
        if broken:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None


class _CountedExporter(SpanExporter):
    """Counts what another exporter exports, in the thread that exports."""

    def __init__(self, tracing: Tracing, exporter: SpanExporter) -> None:
        self._tracing = tracing
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._tracing.exported += len(spans)
            else:
                self._tracing.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _client_span(header: bytes) -> SpanContext | None:
    """Returns the span that a `traceparent` names; None if it is not readable."""
    found = _TRACEPARENT.fullmatch(header)
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    return SpanContext(int(found[2], 16), int(found[3], 16), is_remote=True, trace_flags=TraceFlags(int(found[4], 16)))


def _given(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Returns those with a value."""
    return {name: value for name, value in attributes.items() if value is not None}
