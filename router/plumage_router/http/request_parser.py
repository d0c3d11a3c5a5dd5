"""Parses the bytes of a client connection into whole requests.

The callbacks of the C parser only collect. Once the headers are complete, the host admits or refuses the request; no
byte of its body is kept before. After a refusal nothing more is parsed, because bytes behind a broken message cannot be
trusted. Head and body are bounded, and so is a line without an end.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

import httptools

from plumage.settings.router_config import LimitsConfig
from plumage_router.http.body_memory import BodyMemory
from plumage_router.http.errors import RequestError, bad_request, body_too_large, overloaded
from plumage_router.http.request import SINGLE_HEADERS, Request
from plumage_router.http.wire import is_coded, origin_form

__all__ = ["Admission", "RequestParser", "RequestSink"]

_HEAD_END: Final = b"\r\n\r\n"
SLICE: Final = 16_384  # bytes per parser call, unless they belong to one body: bounds the requests in them


class Admission(Protocol):
    """What the parser needs of its host."""

    limits: LimitsConfig
    body_memory: BodyMemory

    def admit(self, request: Request) -> RequestError | None:
        """Checks complete headers. Returns an error to refuse the request, for example without a key.
        Sets `tenant`, and `reservation` when a handler will read the body."""
        ...


class RequestSink(Protocol):
    """The connection that gets the requests. `peer`: the client's address."""

    peer: str

    def request_began(self) -> None: ...

    def request_admitted(self, request: Request) -> None:
        """Gets a request with complete headers, which the host admitted."""
        ...

    def request_complete(self, request: Request) -> None: ...

    def refuse(self, error: RequestError) -> None:
        """Answers with `error` and calls `RequestParser.stop`."""
        ...

    def is_full(self) -> bool:
        """Whether so many requests or bytes wait that nothing more may be parsed."""
        ...

    def pause_reading(self) -> None:
        """Leaves further bytes in the system's buffer."""
        ...


class RequestParser:
    """Call `feed` with each piece of data. httptools calls the `on_…` methods.

    `request`: the request that is being received. `unparsed`: bytes received while the sink was full.
    """

    __slots__ = (
        "_head_bytes",
        "_host",
        "_in_head",
        "_limits",
        "_max_header_bytes",
        "_max_headers",
        "_parser",
        "_sink",
        "_stopped",
        "_unfinished_line",
        "_upgrade_request",
        "request",
        "unparsed",
    )

    def __init__(self, host: Admission, sink: RequestSink) -> None:
        self._host = host
        self._sink = sink
        self._limits = limits = host.limits
        self._max_header_bytes = limits.max_header_bytes
        self._max_headers = limits.max_headers
        self._parser: Any = httptools.HttpRequestParser(self)
        self._upgrade_request: Request | None = None  # offers an upgrade; it is parsed again without the offer
        self._stopped = False
        self._in_head = False
        self._head_bytes = 0
        self._unfinished_line = 0  # bytes that the parser holds back until their line ends
        self.request: Request | None = None
        self.unparsed = b""

    def feed(self, data: bytes) -> None:
        """Parses data from the socket."""
        if len(data) > SLICE:
            self._feed_slices(data)
        elif self.request is None:
            self._parse(data)
        else:
            self._parse_more(self.request, data)
        request = self.request
        if request is not None and request.reservation is not None:
            self._host.body_memory.unfinished(request.reservation)

    def stop(self) -> None:
        """Parses nothing more, and drops what was received of an incomplete request."""
        self._stopped = True
        self.discard()

    def end(self) -> None:
        """Frees what a lost connection keeps. The C parser has our methods, and the sink has us.

        Otherwise a closed connection would be garbage in cycles, which stays until a rare collection of old objects.
        """
        self.stop()
        self._parser = None
        self._sink = cast(RequestSink, None)

    def discard(self) -> None:
        """Drops what was received of an incomplete request."""
        request, self.request = self.request, None
        if request is not None:
            self.release(request)
        self.unparsed = b""
        self._in_head = False

    def release(self, request: Request) -> None:
        """Frees the memory of a request's body."""
        request.body.clear()
        reservation, request.reservation = request.reservation, None
        if reservation is not None:
            self._host.body_memory.release(reservation)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _feed_slices(self, data: bytes) -> None:
        """Parses slice by slice, until the sink is full. One body is parsed in one slice.

        The first head is a slice of its own. So a body behind it is one piece, which nobody joins and copies again.
        """
        view = memoryview(data)
        start, end = 0, len(data)
        while start < end and not self._stopped:
            if self._sink.is_full():
                self.unparsed = data[start:]
                self._sink.pause_reading()
                return
            stop = start + max(SLICE, self._left_of_body())
            if not start and self.request is None:
                head = data.find(_HEAD_END, 0, SLICE)
                stop = head + len(_HEAD_END) if head >= 0 else stop
            part = view[start:stop]
            if self.request is None:
                self._parse(part)
            else:
                self._parse_more(self.request, part)
            start = stop

    def _left_of_body(self) -> int:
        """Bytes of the current body that have not arrived yet; 0 when that is unknown."""
        request = self.request
        if request is None or self._in_head:
            return 0
        return int(request.headers.get(b"content-length", b"0")) - request.size

    def _parse(self, data: bytes | memoryview) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = self._without_upgrade(bytes(data[stopped.args[0] :]))
            except httptools.HttpParserError as error:
                self._sink.refuse(bad_request(f"Malformed HTTP request: {_reason(error)}.", code="malformed_http"))
                return
            else:
                return

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Ignores an offer to upgrade the protocol (RFC 9110 §7.8).

        The C parser treats the body as data of the other protocol. So a new parser parses the head again without
        the offer. The old one accepts nothing more after a message that closes the connection.
        """
        request, self._upgrade_request = self._upgrade_request, None
        self._parser = httptools.HttpRequestParser(self)
        return b"" if request is None else request.head(without=b"upgrade") + rest  # None: it was refused

    def _parse_more(self, request: Request, data: bytes | memoryview) -> None:
        """Continues a message. The C parser holds back a line without an end, so its bytes are counted here."""
        known = self._head_bytes + request.size
        self._parse(data)
        if self.request is not request or self._head_bytes + request.size != known:
            self._unfinished_line = 0
            return
        self._unfinished_line += len(data)
        if self._head_bytes + self._unfinished_line > self._max_header_bytes:
            self._refuse_head()

    # -- callbacks of the C parser ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._stopped:
            return
        self.request = Request(self._sink.peer)
        self._in_head = True
        self._head_bytes = self._unfinished_line = 0
        self._sink.request_began()

    def on_url(self, part: bytes) -> None:
        request = self.request
        if request is not None:
            request.target = request.target + part if request.target else part
            self._head_bytes += len(part)
            if self._head_bytes > self._max_header_bytes:
                self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self.request
        if request is None:
            return
        self._head_bytes += len(name) + len(value) + 4
        headers = request.headers
        if self._head_bytes > self._max_header_bytes or len(headers) >= self._max_headers:
            self._refuse_head()
            return
        if not self._in_head:
            return  # a trailer: it is counted and ignored
        name = name.lower()
        if name in headers:
            self._repeat(request, name, value)
        else:
            headers[name] = value

    def on_headers_complete(self) -> None:
        request = self.request
        if request is None:
            return
        self._in_head = False
        parser = self._parser
        request.method = method = parser.get_method()
        if method == b"CONNECT":
            self._sink.refuse(bad_request("This server is not a proxy for other hosts.", code="connect"))
            return
        if request.target[:1] != b"/":
            request.target = origin_form(request.target)
        request.keep_alive = keep_alive = parser.should_keep_alive()
        # The parser makes a text of the version. Without such a header only 1.1 keeps a connection.
        asked = not keep_alive or b"connection" in request.headers or b"proxy-connection" in request.headers
        if asked and parser.get_http_version() != "1.1":
            request.http10 = True
            request.keep_alive = False
        if parser.should_upgrade():
            self._upgrade_request, self.request = request, None
        else:
            self._check_head(request)

    def on_body(self, data: bytes) -> None:
        request = self.request
        if request is None:
            return
        size, reservation = len(data), request.reservation
        request.size += size
        if request.size > self._limits.max_body_bytes:
            self._sink.refuse(body_too_large(self._limits.max_body_bytes))
        elif reservation is None:
            return  # no handler reads the body
        elif self._host.body_memory.reserve(reservation, size):
            request.body.add(data)
        else:
            self._evict()

    def on_message_complete(self) -> None:
        request, self.request = self.request, None
        if request is None:
            return
        if request.reservation is not None:
            self._host.body_memory.complete(request.reservation)
        self._sink.request_complete(request)

    def _repeat(self, request: Request, name: bytes, value: bytes) -> None:
        if name in SINGLE_HEADERS:
            message = f"The header {name.decode('latin-1')} is repeated."
            self._sink.refuse(bad_request(message, code="repeated_header"))
        else:
            request.headers[name] += b", " + value

    def _check_head(self, request: Request) -> None:
        error = _check_head(request, self._limits) or self._host.admit(request)
        if error is not None:
            self._sink.refuse(error)
            return
        if request.reservation is not None:
            request.reservation.evict = self._evict
        self._sink.request_admitted(request)

    def _evict(self) -> None:
        """Refuses the body that is arriving, because no memory is left for it."""
        self._sink.refuse(overloaded("Too many request bodies are in memory."))

    def _refuse_head(self) -> None:
        self._sink.refuse(RequestError(431, "The request's headers are too large.", code="headers_too_large"))


def _reason(error: Exception) -> str:
    """Returns the parser's message without the bytes that the client sent."""
    return str(error).split(":", 1)[0] or "unreadable"


def _check_head(request: Request, limits: LimitsConfig) -> RequestError | None:
    """Checks a complete head before any byte of the body. Returns the first violation, None without one."""
    headers = request.headers
    length = headers.get(b"content-length")
    codings = headers.get(b"transfer-encoding")
    if length is not None and int(length) > limits.max_body_bytes:
        return body_too_large(limits.max_body_bytes)
    if not request.http10 and b"host" not in headers:
        return bad_request("The Host header is missing.", code="malformed_http")
    if codings is not None and request.http10:  # RFC 9112, section 6.1: the framing must be treated as faulty
        return bad_request("HTTP/1.0 has no Transfer-Encoding.", code="malformed_http")
    if codings is not None and is_coded(codings):
        return RequestError(501, "The only supported transfer coding is chunked.", code="transfer_encoding")
    if b"expect" in headers and headers[b"expect"].lower() != b"100-continue":
        return RequestError(417, "The only supported expectation is 100-continue.", code="expectation")
    return None
