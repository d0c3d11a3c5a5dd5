"""The client's side of a connection: whole requests are served, answers go out in order.

Requests are served after the parser has returned (`intake.py`), one at a time and in the order they came (pipelining),
so an answer can never overtake another. A request that breaks a rule is answered with an error object after those
before it, and the connection ends. While more requests wait than may, or more bytes, the connection is not read.

Every state has a deadline: a client that trickles bytes, or takes none, is cut off. A client may end its own stream and
still read (half-close): requests that came whole are answered. One that left altogether is told from it by a reset,
within a tick; its handler is told, so that the engine stops working for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import cast

from plumage_router.departure import has_left
from plumage_router.errors import RequestError
from plumage_router.intake import Intake
from plumage_router.request import Handler, Host, Request
from plumage_router.wire import CONTINUE, response_head

__all__ = ["ClientConnection"]

log = logging.getLogger(__name__)

LINGER = 1.0  # seconds a client has to close its side once the last answer is on its way


class ClientConnection(Intake):
    """One client connection; `deadline` is read by the host's sweeper, which then calls `expire`."""

    __slots__ = (
        "_closing",
        "_ended",
        "_loop",
        "_paused",
        "_refusal_lines",
        "_served",
        "_serving",
        "_timeouts",
        "_transport",
        "_waiting",
        "deadline",
    )

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(host)
        self._timeouts = host.timeouts
        self._loop = loop
        self._transport = cast(asyncio.Transport, None)
        self._waiting: deque[Request] = deque()
        self._serving: Handler | None = None
        self._served: Request | None = None
        self._refusal_lines = b""
        self._closing = False
        self._paused = False  # the client has not taken what it was sent
        self._ended = False  # the client ended its stream, and may still read
        self.deadline = math.inf

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._begin_reading()
        self.deadline = self._host.tick + self._timeouts.header
        error = self._host.opened(self)
        if error is not None:
            self._refuse(error)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._closing:
            return  # thrown away: an answer that ends the connection is on its way
        self._feed_all(data)
        if self._waiting and self._serving is None and not self._paused:
            self._serve()
        if self._waiting and self._is_full() and not self._unfed and not self._closing:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """False closes the connection."""
        if self._closing or (self._serving is None and not self._waiting):
            return False
        self._ended = True
        self._drop_unread()
        self._watch_departure()
        return True

    def connection_lost(self, error: BaseException | None) -> None:
        self._closing = True
        self._drop_unread()
        while self._waiting:
            self._release(self._waiting.popleft())
        handler, self._serving = self._serving, None
        self._forget_served()
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
            self.deadline = self._while_served()
            self._serving.resume()
        else:
            self._go_on()

    # -- what the parser found -----------------------------------------------------------------------------------------

    def _begun(self) -> None:
        if self._serving is None:
            self.deadline = self._host.tick + self._timeouts.header

    def _admitted(self, request: Request) -> None:
        if self._serving is not None:
            return
        self.deadline = self._host.tick + self._timeouts.body
        if b"expect" in request.headers and not request.http10 and not self._waiting:
            self._transport.write(CONTINUE)

    def _received(self, request: Request) -> None:
        self._waiting.append(request)

    def _is_full(self) -> bool:
        waiting = self._waiting
        if not waiting:
            return False
        held = sum(request.size for request in waiting)
        return len(waiting) >= self._limits.max_pipelined or held >= self._limits.max_body_bytes

    def _stop_reading(self) -> None:
        self._transport.pause_reading()

    def _read_on(self) -> None:
        """What was left unread, now that there is room for it."""
        if self._is_full() or self._refusal is not None or self._closing or self._transport.is_closing():
            return
        data, self._unfed = self._unfed, b""
        if data:
            self.data_received(data)
        if not self._unfed and not self._is_full() and not self._transport.is_closing():
            self._transport.resume_reading()

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
        self._forget_served()
        if not keep_alive:
            self._linger()
        elif not self._paused:
            self._go_on()

    def free_body(self) -> None:
        """The handler needs the body of its request no more."""
        if self._served is not None:
            self._release(self._served)

    def _go_on(self) -> None:
        """What comes next once an answer is written and taken."""
        if self._waiting:
            self._loop.call_soon(self._serve_next)
        elif self._refusal is not None:
            self._answer_refusal()
        elif self._ended:
            self._linger()
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
        if self._ended and self._serving is not None and not self._paused and not has_left(self._transport):
            self.deadline = self._while_served()
        elif self._request is not None and self._serving is None and self._refusal is None and not self._closing:
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
        full = self._is_full()
        request = self._waiting.popleft()
        self.deadline = self._while_served()
        self._served = request
        handler = self._serving = self._host.handler(request, self)
        handler.start()
        if full:
            self._loop.call_soon(self._read_on)

    def _while_served(self) -> float:
        """No deadline while a request is served; a client that ended its stream is looked at with each tick."""
        return self._host.tick if self._ended else math.inf

    def _watch_departure(self) -> None:
        """Sends an interim response where that is allowed: a client that left answers it with a reset."""
        if self._serving is None:
            return
        served = self._served
        if served is not None and not served.http10 and not self._serving.answering:
            self._transport.write(CONTINUE)
        if not self._paused:
            self.deadline = self._while_served()

    def _forget_served(self) -> None:
        request, self._served = self._served, None
        if request is not None:
            self._release(request)

    def _refuse(self, error: RequestError) -> None:
        """No further request is read; the error is sent once those before it are answered."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._drop_unread()
        self._refusal_lines = self._host.refused(error)
        if self._serving is None and not self._waiting:
            self._answer_refusal()

    def _answer_refusal(self) -> None:
        error = self._refusal
        assert error is not None
        body, lines = error.body(), self._refusal_lines
        head = response_head(error.status, lines, self._host.date, length=len(body), keep_alive=False)
        self._transport.write(head + body)
        self._linger()

    def _linger(self) -> None:
        """Sends what is written and our end; the client's own end, or a second, closes the rest. Closing at once with
        unread bytes would reset the connection and could eat the answer."""
        self._closing = True
        self._drop_unread()
        if self._ended:
            self._await_end()
            self._transport.close()
            return
        if not self._transport.is_closing():
            self._transport.resume_reading()  # or the client's end would not be seen
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=0)  # `resume_writing` will tell when the last byte is gone
            self._transport.write_eof()
        self._await_end()

    def _await_end(self) -> None:
        """As long as bytes wait for it, a client has the time that any slow reader has."""
        waiting = self._transport.get_write_buffer_size() > 0
        self.deadline = self._host.tick + (self._timeouts.write if waiting else LINGER)
