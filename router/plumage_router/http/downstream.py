"""A client's connection: serves its requests one at a time, in order (pipelining), and sends their answers.

- A request is served after the parser has returned (`request_parser.py`), so no answer can overtake another.
- A request that breaks a rule gets an error after the answers before it. Then the connection ends.
- While too many requests or bytes wait, the connection is not read.
- Every state has a deadline: a client that sends or reads too slowly is disconnected.
- A client may end its own stream and still read (half-close): its complete requests are answered. A client that closed
  its socket answers the next byte with a reset. That is checked once a tick, and the request's handler is aborted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
from collections import deque
from ipaddress import IPv6Address, IPv6Network
from typing import Final, Protocol, cast

from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.http.body_memory import BodyMemory
from plumage_router.http.errors import RequestError, error_event
from plumage_router.http.request import Handler, Request
from plumage_router.http.request_parser import RequestParser
from plumage_router.http.wire import CONTINUE, JSON, LAST_CHUNK, chunk, header_lines, response_head

__all__ = ["LINGER", "DownstreamConnection", "DownstreamHost", "EngineAnswer", "peer_address"]

log = logging.getLogger(__name__)

LINGER: Final = 1.0  # seconds that a client has to close its side after the last answer
_PASSED_BACK: Final = frozenset((b"cache-control", b"retry-after", b"x-accel-buffering"))
_TRUNCATED: Final = "The engine failed before its answer was complete."


class DownstreamHost(Protocol):
    """What a connection needs of its port. `tick`: a coarse clock in seconds, for deadlines. `date`: a Date header."""

    limits: LimitsConfig
    timeouts: TimeoutsConfig
    tick: float
    date: bytes
    body_memory: BodyMemory

    def opened(self, connection: DownstreamConnection) -> RequestError | None:
        """Registers the connection. Returns an error when too many are open."""
        ...

    def closed(self, connection: DownstreamConnection) -> None: ...

    def admit(self, request: Request) -> RequestError | None:
        """See `request_parser.Admission`."""
        ...

    def handler(self, request: Request, connection: DownstreamConnection) -> Handler: ...

    def refused(self, error: RequestError) -> bytes:
        """Counts a request that was refused before it had a handler. Returns the header lines of the answer."""
        ...


class _Refusal:
    """The answer to a request that ends the connection. It waits for the answers before it."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        self.headers = b""


class DownstreamConnection(asyncio.Protocol):
    """One client connection. The port calls `expire` once `deadline` has passed.

    peer: the client's address, for the shares of memory and time; "" on a Unix socket. An IPv6 client is its network
    of 64 bits, since it can have any address of that.
    """

    __slots__ = (
        "_closing",
        "_current",
        "_half_closed",
        "_handler",
        "_host",
        "_limits",
        "_loop",
        "_parser",
        "_refusal",
        "_timeouts",
        "_waiting",
        "_write_paused",
        "deadline",
        "peer",
        "transport",
    )

    def __init__(self, host: DownstreamHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._limits = host.limits
        self._timeouts = host.timeouts
        self._loop = loop
        self._parser = RequestParser(host, self)
        self._waiting: deque[Request] = deque()
        self._handler: Handler | None = None
        self._current: Request | None = None  # the one that the handler answers
        self._refusal: _Refusal | None = None
        self._closing = False
        self._write_paused = False  # the client has not read what was sent
        self._half_closed = False  # the client ended its stream and may still read
        self.transport = cast(asyncio.Transport, None)
        self.deadline = math.inf
        self.peer = ""

    # -- callbacks of the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer = peer_address(transport.get_extra_info("peername"))
        self.deadline = self._host.tick + self._timeouts.header
        error = self._host.opened(self)
        if error is not None:
            self.refuse(error)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._closing:
            return  # an answer that ends the connection is on its way
        self._parser.feed(data)
        if self._waiting:
            if self._handler is None and not self._write_paused:
                self._serve()
            if self._waiting and self.is_full() and not self._parser.unparsed and not self._closing:
                self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Returns False to close the connection."""
        if self._closing or (self._handler is None and not self._waiting):
            return False
        self._half_closed = True
        self._parser.discard()
        self._provoke_reset()
        return True

    def connection_lost(self, error: BaseException | None) -> None:
        self._closing = True
        self._parser.end()
        while self._waiting:
            self._parser.release(self._waiting.popleft())
        handler, self._handler = self._handler, None
        self._release_current()
        if handler is not None:
            handler.abort()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self.deadline = self._host.tick + self._timeouts.write
        if self._handler is not None:
            self._handler.pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._closing:
            self.deadline = self._host.tick + LINGER
        elif self._handler is not None:
            self.deadline = self._deadline_while_served()
            self._handler.resume()
        else:
            self._continue()

    # -- callbacks of the parser --------------------------------------------------------------------------------------

    def request_began(self) -> None:
        if self._handler is None:
            self.deadline = self._host.tick + self._timeouts.header

    def request_admitted(self, request: Request) -> None:
        if self._handler is not None:
            return
        self.deadline = self._host.tick + self._timeouts.body
        if b"expect" in request.headers and not request.http10 and not self._waiting:
            self.transport.write(CONTINUE)

    def request_complete(self, request: Request) -> None:
        self._waiting.append(request)

    def refuse(self, error: RequestError) -> None:
        """Reads no further request. Sends the error once the requests before it are answered."""
        if self._refusal is not None:
            return
        body = error.body(self._parser.request.target if self._parser.request is not None else b"")
        refusal = self._refusal = _Refusal(error.status, body)
        self._parser.stop()
        refusal.headers = self._host.refused(error)
        if self._handler is None and not self._waiting:
            self._answer_refusal()

    def is_full(self) -> bool:
        waiting = self._waiting
        if not waiting:
            return False
        buffered = sum(request.size for request in waiting)
        return len(waiting) >= self._limits.max_pipelined or buffered >= self._limits.max_body_bytes

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    # -- for the handler ----------------------------------------------------------------------------------------------

    def answer_begins(self) -> None:
        """Call before an answer's first byte is written. Interim responses do not count."""

    def respond(self, status: int, headers: bytes, body: bytes, *, keep_alive: bool, head_only: bool = False) -> None:
        """Sends a whole answer and ends the request. headers: complete header lines."""
        head = response_head(status, headers, self._host.date, length=len(body), keep_alive=keep_alive)
        self.answer_begins()
        self.transport.write(head if head_only else head + body)
        self.done(keep_alive=keep_alive)

    def done(self, *, keep_alive: bool) -> None:
        """Call once the answer is written. Without keep_alive the connection closes once the answer is sent."""
        self._handler = None
        self._release_current()
        if not keep_alive:
            self._linger()
        elif not self._write_paused:
            self._continue()

    def free_body(self) -> None:
        """Frees the body of the request, which the handler needs no longer."""
        if self._current is not None:
            self._parser.release(self._current)

    def cut(self) -> None:
        """Ends the connection within an answer, so that the client sees that the answer is incomplete."""
        self._handler = None
        self._closing = True
        self._set_closing_deadline()
        self.transport.close()

    # -- for the port -------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Ends what the deadline bounds. A client that sends a request gets an error; any other is disconnected."""
        self.deadline = math.inf
        if self._half_closed and self._handler is not None and not self._write_paused and not _is_reset(self.transport):
            self.deadline = self._deadline_while_served()
        elif self._parser.request is not None and self._handler is None and self._refusal is None and not self._closing:
            self.refuse(RequestError(408, "The request did not arrive in time.", code="request_timeout"))
        else:
            self.transport.abort()

    def close_when_idle(self) -> bool:
        """Closes a connection that is between requests, at shutdown. Returns True if it was."""
        if self._handler is not None or self._waiting or self._parser.request is not None:
            return False
        self.transport.close()
        return True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _continue(self) -> None:
        """Goes on with the next request: an answer is written and the client has read it."""
        if self._waiting:
            self._loop.call_soon(self._serve_next)
        elif self._refusal is not None:
            self._answer_refusal()
        elif self._half_closed:
            self._linger()
        elif self._parser.request is None:
            self.deadline = self._host.tick + self._timeouts.keep_alive
        else:
            self.deadline = self._host.tick + self._timeouts.body

    def _serve_next(self) -> None:
        if self._waiting and self._handler is None and not self._closing and not self._write_paused:
            self._serve()

    def _serve(self) -> None:
        full = self.is_full()
        request = self._waiting.popleft()
        self.deadline = self._deadline_while_served()
        self._current = request
        handler = self._handler = self._host.handler(request, self)
        handler.start()
        if full:
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        """Parses what arrived while the connection was full."""
        if self.is_full() or self._refusal is not None or self._closing or self.transport.is_closing():
            return
        data, self._parser.unparsed = self._parser.unparsed, b""
        if data:
            self.data_received(data)
        if not self._parser.unparsed and not self.is_full() and not self.transport.is_closing():
            self.transport.resume_reading()

    def _deadline_while_served(self) -> float:
        """Returns infinity; a half-closed connection is checked with each tick."""
        return self._host.tick if self._half_closed else math.inf

    def _provoke_reset(self) -> None:
        """Sends an interim response where that is allowed. The system of a client that left answers with a reset."""
        if self._handler is None:
            return
        current = self._current
        if current is not None and not current.http10 and not self._handler.answering:
            self.transport.write(CONTINUE)
        if not self._write_paused:
            self.deadline = self._deadline_while_served()

    def _release_current(self) -> None:
        request, self._current = self._current, None
        if request is not None:
            self._parser.release(request)

    def _answer_refusal(self) -> None:
        refusal = self._refusal
        assert refusal is not None
        length = len(refusal.body)
        head = response_head(refusal.status, refusal.headers, self._host.date, length=length, keep_alive=False)
        self.answer_begins()
        self.transport.write(head + refusal.body)
        self._linger()

    def _linger(self) -> None:
        """Sends what is written and ends our stream, then waits for the client's end.

        A close with unread bytes would reset the connection, and the client could lose the answer.
        """
        self._closing = True
        self._parser.discard()
        if self._half_closed:
            self._set_closing_deadline()
            self.transport.close()
            return
        if not self.transport.is_closing():
            self.transport.resume_reading()  # without it the client's end would go unnoticed
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=0)  # calls `resume_writing` when the last byte is sent
            self.transport.write_eof()
        self._set_closing_deadline()

    def _set_closing_deadline(self) -> None:
        """Sets the deadline of a closing connection. A client with bytes to read gets the time of any slow reader."""
        waiting = self.transport.get_write_buffer_size() > 0
        self.deadline = self._host.tick + (self._timeouts.write if waiting else LINGER)


def peer_address(name: object) -> str:
    """Returns the address of a socket's other side, as in `DownstreamConnection.peer`. name: the system's."""
    if not isinstance(name, tuple):
        return ""
    host = str(name[0])
    if len(name) == 2 or host.startswith("::ffff:"):
        return host
    return str(IPv6Network((int(IPv6Address(host.partition("%")[0])), 64), strict=False))


def _is_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side of the socket is gone.

    A client that closes its socket and a client that only ends its stream send the same bytes. The system of the first
    answers a further byte with a reset; that of the second accepts it.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), 0)  # POLLHUP and POLLERR are always reported
    return bool(poll.poll(0))


class EngineAnswer:
    """The answer of an engine on its way to the client.

    `status`: of the answer that began, 0 before. `events`: it is a stream. `chunked`: its body is sent in chunks.
    """

    __slots__ = ("_http10", "_target", "chunked", "client", "events", "keep_alive", "status")

    def __init__(self, client: DownstreamConnection, request: Request) -> None:
        self._http10 = request.http10
        self._target = request.target
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
        self.client.answer_begins()
        self.client.transport.write(head + chunk(data) if data and self.chunked else head + data)

    def end(self, data: bytes) -> None:
        """Sends the last body bytes, perhaps none, and ends a complete answer."""
        if self.chunked:
            self.client.transport.write(chunk(data) + LAST_CHUNK if data else LAST_CHUNK)
        elif data:
            self.client.transport.write(data)
        self.client.done(keep_alive=self.keep_alive)

    def truncate(self) -> None:
        """Writes an error into a stream, and cuts the connection: the client has a part of the answer."""
        if self.events:
            event = error_event(502, _TRUNCATED, code="truncated", target=self._target)
            self.client.transport.write(chunk(event) if self.chunked else event)
        self.client.cut()
