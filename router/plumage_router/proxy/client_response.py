"""The client's side of a completion: writes the response head, the body and its end."""

from __future__ import annotations

import json
from typing import Any, Final

from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.errors import error_object
from plumage_router.http.request import Request
from plumage_router.http.wire import JSON, LAST_CHUNK, chunk, response_head

__all__ = ["ClientResponse", "explanation_line", "header_lines"]

_PASSED_BACK: Final = frozenset((b"cache-control", b"retry-after", b"x-accel-buffering"))
_TRUNCATED: Final = b"data: %b\n\n" % error_object(
    502, "The engine failed before its answer was complete.", code="truncated"
)


class ClientResponse:
    """`status`: of the answer that began, 0 before. `events`: it is a stream. `chunked`: its body is sent in chunks."""

    __slots__ = ("_http10", "chunked", "client", "events", "keep_alive", "status")

    def __init__(self, client: DownstreamConnection, request: Request) -> None:
        self._http10 = request.http10
        self.client = client
        self.keep_alive = request.keep_alive
        self.chunked = False
        self.events = False
        self.status = 0

    def begin(
        self, status: int, headers: dict[bytes, bytes], data: bytes, *, date: bytes, request_id: str, extra: bytes
    ) -> None:
        """Sends the head and the first body bytes. headers: of the engine's answer; extra: further header lines."""
        kind = headers.get(b"content-type", JSON)
        self.status = status
        self.events = kind.startswith(b"text/event-stream")
        length = None if self.events or b"content-length" not in headers else int(headers[b"content-length"])
        self.chunked = length is None and not self._http10
        self.keep_alive = self.keep_alive and (length is not None or self.chunked)
        passed = header_lines(_PASSED_BACK, headers)
        lines = b"content-type: %b\r\nx-request-id: %b\r\n%b%b" % (kind, request_id.encode(), passed, extra)
        head = response_head(status, lines, date, length=length, keep_alive=self.keep_alive, chunked=self.chunked)
        self.client.transport.write(head + chunk(data) if data and self.chunked else head + data)

    def end(self) -> None:
        """The answer is complete."""
        if self.chunked:
            self.client.transport.write(LAST_CHUNK)
        self.client.done(keep_alive=self.keep_alive)

    def truncate(self) -> None:
        """The client has a part of the answer: writes an error into a stream, and cuts the connection."""
        if self.events:
            self.client.transport.write(chunk(_TRUNCATED) if self.chunked else _TRUNCATED)
        self.client.cut()


def explanation_line(document: dict[str, Any]) -> bytes:
    """A header line with the audit record as one line of ASCII JSON."""
    return b"x-plumage-explain: %b\r\n" % json.dumps(document, separators=(",", ":")).encode("ascii")


def header_lines(names: frozenset[bytes], headers: dict[bytes, bytes]) -> bytes:
    """The named headers as lines. Most requests and answers have none of them."""
    if names.isdisjoint(headers):
        return b""
    return b"".join([b"%b: %b\r\n" % (name, headers[name]) for name in sorted(names & headers.keys())])
