"""Traces of requests: OpenTelemetry spans, and the trace context that engines get (W3C Trace Context).

A request with a `traceparent` is traced if its client traced it. Of the other requests a share is traced. A request
has one span, and each attempt on a replica has another one below it. The engine gets the attempt's id, so its own
spans are below that. Spans have the names of OpenTelemetry's conventions for HTTP and generative AI where there are
such. They contain no prompt, answer, key or query string.

A thread exports the spans. While `MAX_SPANS` are open or wait for it, no further request is traced.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from plumage.settings.router_config import TracingConfig
from plumage_router.fleet.replicas import Replica
from plumage_router.http.errors import Failure
from plumage_router.http.paths import CHAT_PATH, COMPLETION_PATH, EMBEDDINGS_PATH, MESSAGES_PATH, RESPONSES_PATH
from plumage_router.http.request import Request
from plumage_router.routing.audit import Record
from plumage_router.routing.decider import Decision

__all__ = ["MAX_SPANS", "RequestTrace", "Tracing"]

MAX_SPANS: Final = 4_096  # open, or waiting for their export
_BATCH: Final = 32  # spans: encoding them takes the interpreter for about two milliseconds
_EVERY_MS: Final = 1_000.0  # between two exports of less than a batch
_EXPORT_TIMEOUT: Final = 10.0  # seconds
_CLOSE_TIMEOUT: Final = 2.0  # seconds that `close` waits for the last spans
_PATH: Final = "/v1/traces"
_LENGTH: Final = 55  # bytes of a traceparent, version 00
_W3C: Final = TraceContextTextMapPropagator()
_OPERATIONS: Final = {
    CHAT_PATH: "chat", MESSAGES_PATH: "chat", RESPONSES_PATH: "chat", COMPLETION_PATH: "text_completion",
    EMBEDDINGS_PATH: "embeddings",
}  # fmt: skip


class Tracing:
    """Begins the traces of one pool's requests, and exports their spans until `close`.

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
        resource = Resource.create(
            {"service.name": config.service, "service.instance.id": instance, "service.version": version("plumage-llm")}
        )
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._tracer = self._provider.get_tracer("plumage_router", version("plumage-llm"))
        counted = _CountedExporter(
            self, exporter or OTLPSpanExporter(config.endpoint.rstrip("/") + _PATH, timeout=_EXPORT_TIMEOUT)
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                counted, max_queue_size=2 * MAX_SPANS, schedule_delay_millis=_EVERY_MS, max_export_batch_size=_BATCH
            )
        )

    def begin(self, request: Request) -> RequestTrace | None:
        """The trace of a request that arrived now; None for most."""
        parent = request.headers.get(b"traceparent")
        if parent is None:
            if self._rng.random() >= self._share:
                return None
        elif len(parent) == _LENGTH and parent.endswith(b"-00"):  # most clients trace few requests
            return None
        context = None if parent is None else _W3C.extract(_carrier(request.headers))
        if context is not None and not (given := get_current_span(context).get_span_context()).trace_flags.sampled:
            if given.is_valid or self._rng.random() >= self._share:
                return None
            context = None  # an unreadable header counts as none
        if self._begun - self.exported - self.failed >= MAX_SPANS:
            self.skipped += 1
            return None
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        attributes = {"http.request.method": "POST", "url.path": path, "http.route": path}
        span = self._tracer.start_span(f"POST {path}", context, SpanKind.SERVER, attributes)
        self._begun += 1
        return RequestTrace(self, span)

    def start_attempt(self, parent: Span, name: str, attributes: Mapping[str, AttributeValue]) -> Span:
        """The span of an attempt, below the request's."""
        self._begun += 1
        return self._tracer.start_span(name, set_span_in_context(parent), SpanKind.CLIENT, attributes)

    def close(self) -> None:
        """Waits briefly until the last spans are exported."""
        thread = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(_CLOSE_TIMEOUT)


class RequestTrace:
    """The spans of one request. Each begun attempt ends in `failed`, or with the request."""

    __slots__ = ("_attempt", "_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span
        self._attempt: Span | None = None

    def attempt(self, decision: Decision, replica: Replica, *, policy: str, waited: float) -> bytes:
        """Begins the span of an attempt. Returns the header line with which the engine's spans join the trace.

        waited: seconds from the request's last byte to the decision.
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
        self._attempt = span = self._tracing.start_attempt(self._span, f"{operation} {prompt.model}", attributes)
        context = span.get_span_context()
        return b"traceparent: 00-%032x-%016x-01\r\n" % (context.trace_id, context.span_id)

    def first_byte(self, *, streams: bool) -> None:
        """The answer began. streams: its first byte is its first token."""
        if self._attempt is not None:
            self._attempt.add_event("first token" if streams else "first byte")

    def failed(self, failure: Failure) -> None:
        """The attempt failed; another one may follow."""
        if self._attempt is not None:
            self._attempt.set_attribute("error.type", failure)
            self._attempt.set_status(Status(StatusCode.ERROR, failure.text))
            self._end_attempt()

    def end(self, status: int, outcome: str, error: str | None, record: Record | None, **more: str | None) -> None:
        """The request is over. error: the code of its error. more: further attributes, under `plumage.`."""
        attributes: dict[str, AttributeValue | None] = {
            "http.response.status_code": status,
            "error.type": error,
            "plumage.outcome": outcome,
            **{f"plumage.{name}": value for name, value in more.items()},
        }
        if record is not None:
            tokens = {
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
                "gen_ai.usage.output_tokens": record.output_tokens,
            }
            attributes |= {**tokens, "plumage.replica": record.replica, "plumage.ttft_seconds": record.ttft}
            if self._attempt is not None:
                self._attempt.set_attributes(_given(tokens))
        self._end_attempt()
        self._span.set_attributes(_given(attributes))
        if status >= 500 or outcome == "Truncated":
            self._span.set_status(Status(StatusCode.ERROR, error or outcome))
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


def _carrier(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    names = (b"traceparent", b"tracestate")
    return {name.decode(): headers[name].decode("latin-1") for name in names if name in headers}


def _given(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Those with a value."""
    return {name: value for name, value in attributes.items() if value is not None}
