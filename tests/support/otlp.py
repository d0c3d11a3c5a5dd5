"""Receives OTLP over HTTP in a test, as a collector does, and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Received", "Spans", "received_spans"]


@dataclass(frozen=True)
class Received:
    """A span. Ids in hexadecimal; `parent` is empty for the first span of a trace. events: their names.
    links: the ids of other spans."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: list[str]
    failed: bool
    links: list[str]


@dataclass
class Spans:
    """endpoint: for the manifest. status: what the collector answers."""

    endpoint: str
    status: int = 200
    spans: list[Received] = field(default_factory=list)

    def named(self, beginning: str) -> list[Received]:
        """The spans with such a name, in the order in which they ended."""
        return [span for span in self.spans if span.name.startswith(beginning)]


@contextmanager
def received_spans() -> Iterator[Spans]:
    """What routers export to `endpoint` while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces" and found.status == 200:
                found.spans += _read(body)
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Spans(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _read(body: bytes) -> list[Received]:
    sent = ExportTraceServiceRequest.FromString(body)
    return [
        Received(
            _values(group.resource.attributes)["service.name"], span.name, span.kind, span.trace_id.hex(),
            span.span_id.hex(), span.parent_span_id.hex(), _values(span.attributes),
            [event.name for event in span.events], span.status.code == 2,
            [link.span_id.hex() for link in span.links],
        )
        for group in sent.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
