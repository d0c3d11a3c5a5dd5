"""The client's side of a connection: bytes in, whole requests out, answers in order.

The parser's callbacks only collect; requests are served after the parser has returned, one at a time and in the order
they came (pipelining), so an answer can never overtake another. A request that breaks a rule is answered with an error
object after those before it, and the connection ends: what follows a broken message can't be trusted.

Every state has a deadline (a client that trickles bytes, or takes none, is cut off) and every buffer a bound. The end
of the client's stream counts as its leaving: the handler is told at once, so that the engine stops working for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import Any, cast

import httptools

from plumage_router.errors import RequestError, bad_request, overloaded
from plumage_router.parts import Parts
from plumage_router.request import Handler, Host, Request
from plumage_router.wire import CONTINUE, JSON, is_coded, origin_form, response_head

__all__ = ["ClientConnection"]

log = logging.getLogger(__name__)

LINGER = 1.0  # seconds a client has to close its side once the last answer is on its way
_SINGLE = frozenset((b"host", b"authorization", b"content-type", b"content-length", b"x-request-id", b"expect"))


class ClientConnection(asyncio.Protocol):
    """One client connection; `deadline` is read by the host's sweeper, which then calls `expire`."""

    __slots__ = (
        "_closing",
        "_head_bytes",
        "_host",
        "_in_head",
        "_limits",
        "_loop",
        "_most_header_bytes",
        "_most_headers",
        "_offered",
        "_parser",
        "_parts",
        "_paused",
        "_refusal",
        "_request",
        "_served",
        "_serving",
        "_timeouts",
        "_transport",
        "_unread",
        "_waiting",
        "deadline",
    )

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._limits = limits = host.limits
        self._most_header_bytes = limits.max_header_bytes
        self._most_headers = limits.max_headers
        self._timeouts = host.timeouts
        self._loop = loop
        self._transport = cast(asyncio.Transport, None)
        self._parser: Any = None
        self._request: Request | None = None
        self._offered: Request | None = None  # with an offer to upgrade, until it is read again without
        self._parts = Parts()
        self._in_head = False
        self._head_bytes = 0
        self._unread = 0  # bytes of a message that the parser holds back: they are of no whole line yet
        self._waiting: deque[Request] = deque()
        self._serving: Handler | None = None
        self._served: Request | None = None
        self._refusal: RequestError | None = None
        self._closing = False
        self._paused = False  # the client has not taken what it was sent
        self.deadline = math.inf

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self.deadline = self._host.tick + self._timeouts.header
        error = self._host.opened(self)
        if error is not None:
            self._refuse(error)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._closing:
            return  # thrown away: an answer that ends the connection is on its way
        request = self._request
        if request is None:
            self._feed(data)
        else:
            self._feed_more(request, data)
        if self._waiting and self._serving is None and not self._paused:
            self._serve()

    def eof_received(self) -> None:
        return None  # the transport closes itself; `connection_lost` tells the handler

    def connection_lost(self, error: BaseException | None) -> None:
        self._closing = True
        self._drop_unread()
        while self._waiting:
            self._host.buffered -= self._waiting.popleft().size
        handler, self._serving = self._serving, None
        if self._served is not None:
            self._host.buffered -= self._served.size
            self._served = None
        if handler is not None:
            handler.abort()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._paused = True
        self.deadline = self._host.tick + self._timeouts.write
        if self._serving is not None:
            self._serving.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._closing:
            self.deadline = self._host.tick + LINGER
        elif self._serving is not None:
            self.deadline = math.inf
            self._serving.resume()
        else:
            self._go_on()

    # -- the parser's side --------------------------------------------------------------------------------------------

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

    def on_message_begin(self) -> None:
        if self._refusal is not None:
            return
        if len(self._waiting) >= self._limits.max_pipelined:
            self._refuse(bad_request("Too many pipelined requests.", code="pipelining"))
            return
        self._request = Request()
        self._in_head = True
        self._head_bytes = self._unread = 0
        if self._serving is None:
            self.deadline = self._host.tick + self._timeouts.header

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
        size = len(data)
        request.size += size
        self._host.buffered += size
        if request.size > self._limits.max_body_bytes:
            self._refuse(self._too_large())
        elif self._host.buffered > self._limits.max_buffered_bytes:
            self._refuse(overloaded("Too much is waiting to be sent on."))
        else:
            self._parts.add(data)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        request.body = self._parts.take()
        self._waiting.append(request)

    # -- the handler's side -------------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    def respond(self, status: int, headers: bytes, body: bytes, *, keep_alive: bool, head_only: bool = False) -> None:
        """A whole answer at once; ends the request. `headers` are ready lines."""
        head = response_head(status, headers, self._host.date, length=len(body), keep_alive=keep_alive)
        self._transport.write(head if head_only else head + body)
        self.done(keep_alive=keep_alive)

    def done(self, *, keep_alive: bool) -> None:
        """The handler's answer is written out. Not keeping alive closes the connection once it is sent."""
        self._serving = None
        if self._served is not None:
            self._host.buffered -= self._served.size
            self._served = None
        if not keep_alive:
            self._linger()
        elif not self._paused:
            self._go_on()

    def _go_on(self) -> None:
        """What comes next once an answer is written and taken."""
        if self._waiting:
            self._loop.call_soon(self._serve_next)
        elif self._refusal is not None:
            self._answer_refusal()
        elif self._request is None:
            self.deadline = self._host.tick + self._timeouts.keep_alive
        else:
            self.deadline = self._host.tick + self._timeouts.body

    def cut(self) -> None:
        """Ends the connection in the middle of an answer, so that the client sees that it is not whole."""
        self._serving = None
        self._closing = True
        self._await_end()
        self._transport.close()

    def expire(self) -> None:
        """The deadline passed: a client in the middle of a request is told, all others are just cut off."""
        self.deadline = math.inf
        if self._request is not None and self._serving is None and self._refusal is None and not self._closing:
            self._refuse(RequestError(408, "The request did not arrive in time.", code="request_timeout"))
        else:
            self._transport.abort()

    def close_when_idle(self) -> bool:
        """For shutting down: closes a connection between requests. True when it was one."""
        if self._serving is not None or self._waiting or self._request is not None:
            return False
        self._transport.close()
        return True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _serve_next(self) -> None:
        if self._waiting and self._serving is None and not self._closing and not self._paused:
            self._serve()

    def _serve(self) -> None:
        request = self._waiting.popleft()
        self.deadline = math.inf
        self._served = request
        handler = self._serving = self._host.handler(request, self)
        handler.start()

    def _repeat(self, request: Request, name: bytes, value: bytes) -> None:
        if name in _SINGLE:
            self._refuse(bad_request(f"The header {name.decode('latin-1')} is repeated.", code="repeated_header"))
        else:
            request.headers[name] += b", " + value

    def _check_head(self, request: Request) -> None:
        headers = request.headers
        self.deadline = self._host.tick + self._timeouts.body if self._serving is None else self.deadline
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._limits.max_body_bytes:
            self._refuse(self._too_large())
        elif not request.http10 and b"host" not in headers:
            self._refuse(bad_request("The Host header is missing.", code="malformed_http"))
        elif is_coded(headers.get(b"transfer-encoding", b"")):
            self._refuse(RequestError(501, "Only chunked is known as a transfer coding.", code="transfer_encoding"))
        elif b"expect" in headers:
            self._expect(headers[b"expect"], request)

    def _expect(self, expectation: bytes, request: Request) -> None:
        if expectation.lower() != b"100-continue":
            self._refuse(RequestError(417, "Only 100-continue can be expected.", code="expectation"))
        elif not request.http10 and self._serving is None and not self._waiting:
            self._transport.write(CONTINUE)

    def _refuse_head(self) -> None:
        self._refuse(RequestError(431, "The request's headers are too large.", code="headers_too_large"))

    def _too_large(self) -> RequestError:
        bound = self._limits.max_body_bytes
        return RequestError(413, f"The body is larger than {bound} bytes.", code="body_too_large")

    def _refuse(self, error: RequestError) -> None:
        """No further request is read; the error is sent once those before it are answered."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._in_head = False
        self._drop_unread()
        self._host.refused(error)
        if self._serving is None and not self._waiting:
            self._answer_refusal()

    def _answer_refusal(self) -> None:
        error = self._refusal
        assert error is not None
        headers = b"content-type: %b\r\n" % JSON
        if error.retry_after is not None:
            headers += b"retry-after: %d\r\n" % error.retry_after
        body = error.body()
        head = response_head(error.status, headers, self._host.date, length=len(body), keep_alive=False)
        self._transport.write(head + body)
        self._linger()

    def _linger(self) -> None:
        """Sends what is written and our end; the client's own end, or a second, closes the rest. Closing at once with
        unread bytes would reset the connection and could eat the answer."""
        self._closing = True
        self._drop_unread()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=0)  # `resume_writing` will tell when the last byte is gone
            self._transport.write_eof()
        self._await_end()

    def _await_end(self) -> None:
        """As long as bytes wait for it, a client has the time that any slow reader has."""
        waiting = self._transport.get_write_buffer_size() > 0
        self.deadline = self._host.tick + (self._timeouts.write if waiting else LINGER)

    def _drop_unread(self) -> None:
        if self._request is not None:
            self._host.buffered -= self._request.size
            self._request = None
        self._parts.drop()


def _reason(error: Exception) -> str:
    """The parser's own words, without what a client sent."""
    return str(error).split(":", 1)[0] or "unreadable"
