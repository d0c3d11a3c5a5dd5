"""The receiving half of a client's connection: bytes in, whole requests out.

The parser's callbacks only collect. Once a request's headers are complete the host says whether it may come in; no byte
of its body is kept before. A request that breaks a rule is refused, and nothing behind it is read: what follows a
broken message can't be trusted. Head and body are bounded, a line without end too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools

from plumage_router.errors import RequestError, bad_request, overloaded
from plumage_router.head import SINGLE, too_large, wrong_head
from plumage_router.parts import Parts
from plumage_router.request import Host, Request
from plumage_router.wire import origin_form

__all__ = ["Intake"]

PIECE = 16_384  # bytes given to the parser at once, unless they are of one body: bounds the requests in them


class Intake(asyncio.Protocol):
    """What a subclass must say comes first; `_feed_all` takes what came over the socket."""

    __slots__ = (
        "_head_bytes",
        "_host",
        "_in_head",
        "_limits",
        "_most_header_bytes",
        "_most_headers",
        "_offered",
        "_parser",
        "_parts",
        "_refusal",
        "_request",
        "_unfed",
        "_unread",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._refusal: RequestError | None = None
        self._limits = limits = host.limits
        self._most_header_bytes = limits.max_header_bytes
        self._most_headers = limits.max_headers
        self._parser: Any = None
        self._request: Request | None = None
        self._offered: Request | None = None  # with an offer to upgrade, until it is read again without
        self._parts = Parts()
        self._in_head = False
        self._head_bytes = 0
        self._unread = 0  # bytes of a message that the parser holds back: they are of no whole line yet
        self._unfed = b""  # received, and not given to the parser: reading is paused meanwhile

    # -- for who serves the requests ----------------------------------------------------------------------------------

    def _begun(self) -> None:
        """A request begins."""
        raise NotImplementedError

    def _admitted(self, request: Request) -> None:
        """Its headers are complete, and it may come in."""
        raise NotImplementedError

    def _received(self, request: Request) -> None:
        """It is whole."""
        raise NotImplementedError

    def _refuse(self, error: RequestError) -> None:
        """Nothing more is read; sets `_refusal`."""
        raise NotImplementedError

    def _is_full(self) -> bool:
        """Do so many requests wait, or so many bytes, that no more may be read?"""
        raise NotImplementedError

    def _stop_reading(self) -> None:
        """Leaves the rest in the system's buffer."""
        raise NotImplementedError

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    def _drop_unread(self) -> None:
        """What was received of a request that is not whole."""
        request, self._request = self._request, None
        if request is not None:
            self._release(request)
        self._unfed = b""
        self._in_head = False
        self._parts.drop()

    def _release(self, request: Request) -> None:
        """Its body is not kept any more."""
        request.body = b""
        held, request.held = request.held, None
        if held is not None:
            self._host.room.release(held)

    def _feed_all(self, data: bytes) -> None:
        if len(data) > PIECE:
            self._feed_pieces(data)
        else:
            self._feed_any(data)

    def _feed_any(self, data: bytes) -> None:
        request = self._request
        if request is None:
            self._feed(data)
        else:
            self._feed_more(request, data)

    def _feed_pieces(self, data: bytes) -> None:
        """What is not of one body goes to the parser piece by piece, until so many requests wait that the rest has to
        wait unread."""
        start, end = 0, len(data)
        while start < end and self._refusal is None:
            if self._is_full():
                self._unfed = data[start:]
                self._stop_reading()
                return
            stop = start + max(PIECE, self._left_of_body())
            self._feed_any(data[start:stop])
            start = stop

    def _left_of_body(self) -> int:
        """Bytes that are still to come of the body that is being read; 0 where nobody knows."""
        request = self._request
        if request is None or self._in_head:
            return 0
        return int(request.headers.get(b"content-length", b"0")) - request.size

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = self._without_offer(data[stopped.args[0] :])
            except httptools.HttpParserError as error:
                self._refuse(bad_request(f"Malformed HTTP request: {_reason(error)}.", code="malformed_http"))
                return
            else:
                return

    def _without_offer(self, rest: bytes) -> bytes:
        """An offer to speak another protocol is ignored (RFC 9110 §7.8). The parser took the body for that protocol, so
        the head is read once more, without the offer, and by another: to the first the message is over, and after one
        that closes the connection it takes no more."""
        request, self._offered = self._offered, None
        self._parser = httptools.HttpRequestParser(self)
        return b"" if request is None else request.head(without=b"upgrade") + rest  # None: it was refused

    def _feed_more(self, request: Request, data: bytes) -> None:
        """For a message that came in part before: a line without end is held by the parser, and counted here."""
        known = self._head_bytes + request.size
        self._feed(data)
        if self._request is not request or self._head_bytes + request.size != known:
            self._unread = 0
            return
        self._unread += len(data)
        if self._head_bytes + self._unread > self._most_header_bytes:
            self._refuse_head()

    # -- the parser's side --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._refusal is not None:
            return
        self._request = Request()
        self._in_head = True
        self._head_bytes = self._unread = 0
        self._begun()

    def on_url(self, part: bytes) -> None:
        request = self._request
        if request is not None:
            request.target = request.target + part if request.target else part
            self._head_bytes += len(part)
            if self._head_bytes > self._most_header_bytes:
                self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._request
        if request is None:
            return
        self._head_bytes += len(name) + len(value) + 4
        headers = request.headers
        if self._head_bytes > self._most_header_bytes or len(headers) >= self._most_headers:
            self._refuse_head()
            return
        if not self._in_head:
            return  # a trailer: counted, never believed
        name = name.lower()
        if name in headers:
            self._repeat(request, name, value)
        else:
            headers[name] = value

    def on_headers_complete(self) -> None:
        request = self._request
        if request is None:
            return
        self._in_head = False
        parser = self._parser
        request.method = method = parser.get_method()
        if method == b"CONNECT":
            self._refuse(bad_request("This is no proxy for other hosts.", code="connect"))
            return
        if request.target[:1] != b"/":
            request.target = origin_form(request.target)
        request.keep_alive = parser.should_keep_alive()
        if parser.get_http_version() != "1.1":
            request.http10 = True
            request.keep_alive = False
        if parser.should_upgrade():
            self._offered, self._request = request, None
        else:
            self._check_head(request)

    def on_body(self, data: bytes) -> None:
        request = self._request
        if request is None:
            return
        size, held = len(data), request.held
        request.size += size
        if request.size > self._limits.max_body_bytes:
            self._refuse(too_large(self._limits))
        elif held is None:
            return  # nobody reads it
        elif self._host.room.add(held, size):
            self._parts.add(data)
        else:
            self._refuse(_crowded())

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        request.body = self._parts.take()
        if request.held is not None:
            self._host.room.arrived(request.held)
        self._received(request)

    def _repeat(self, request: Request, name: bytes, value: bytes) -> None:
        if name in SINGLE:
            self._refuse(bad_request(f"The header {name.decode('latin-1')} is repeated.", code="repeated_header"))
        else:
            request.headers[name] += b", " + value

    def _check_head(self, request: Request) -> None:
        error = wrong_head(request, self._limits) or self._host.admit(request)
        if error is not None:
            self._refuse(error)
            return
        if request.held is not None:
            request.held.evict = self._evict
        self._admitted(request)

    def _evict(self) -> None:
        """Others need the room that the body takes which is being received."""
        self._refuse(_crowded())

    def _refuse_head(self) -> None:
        self._refuse(RequestError(431, "The request's headers are too large.", code="headers_too_large"))


def _crowded() -> RequestError:
    return overloaded("Too much is waiting to be sent on.")


def _reason(error: Exception) -> str:
    """The parser's own words, without what a client sent."""
    return str(error).split(":", 1)[0] or "unreadable"
