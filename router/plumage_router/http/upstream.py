"""Connections to engines, which are kept and reused. Each carries one request at a time.

A pool belongs to one replica. It uses the newest idle connection first, so that the engine closes the oldest. The C
parser parses an answer. What one read brings of its body reaches the receiver at once, and is sent on by one call of
the system. Nothing behind the end of an answer is passed on, and a connection with further bytes is closed. So one
request's answer cannot become another's. Over TLS a connection is not used again once the files of its context changed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias, cast

import httptools

from plumage_router.clock import fair_call
from plumage_router.http.errors import Failure
from plumage_router.http.tls_failures import engine_refused_us, tls_failure
from plumage_router.process.engine_tls import UpstreamTls

__all__ = ["ConnectionPool", "Receiver", "UpstreamConnection"]

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Gets an answer. After `answered` or `lost` the connection is no longer the receiver's."""

    def connected(self, connection: UpstreamConnection) -> None:
        """Gets a new connection that is ready."""
        ...

    def unreachable(self, failure: Failure) -> None:
        """Learns that no connection could be made."""
        ...

    def head(self, status: int, headers: dict[bytes, bytes]) -> None: ...

    def body(self, data: bytes) -> None: ...

    def answered(self, data: bytes) -> None:
        """Learns that the answer is complete. data: its last bytes, perhaps none."""
        ...

    def lost(self, failure: Failure) -> None:
        """Learns that the connection broke, or that the answer is unreadable."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine.

    context: of TLS; None for plain HTTP.
    `reused`: an earlier answer came over it. `heard`: a byte of the current answer came.
    """

    __slots__ = (
        "_complete",
        "_ends_with_connection",
        "_headers",
        "_interim",
        "_keep_alive",
        "_parser",
        "_parts",
        "_paused",
        "_pool",
        "_receiver",
        "context",
        "heard",
        "reused",
        "transport",
    )

    def __init__(self, pool: ConnectionPool, context: ssl.SSLContext | None = None) -> None:
        self._pool = pool
        self.context = context
        self._parser: Any = None
        self._receiver: Receiver | None = None
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []  # of the body, from the current read
        self._complete = False
        self._interim = False
        self._keep_alive = False
        self._paused = False
        self._ends_with_connection = False
        self.transport = cast(asyncio.Transport, None)
        self.reused = False
        self.heard = False

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Sends a request; the answer goes to `receiver`."""
        self._receiver = receiver
        self._complete = self.heard = False
        self.transport.writelines((head, body))

    def pause(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def abandon(self) -> None:
        """Drops the answer. The engine stops its work when the connection closes."""
        self._receiver = None
        self.transport.abort()

    # -- callbacks of the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            self.transport.abort()  # bytes without a request
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error, httptools.HttpParserCallbackError):
                log.error("reading an answer failed", exc_info=error.__context__)
            self._pass_on(receiver)
            self._fail(Failure.UNREADABLE_ANSWER)
            return
        if self._complete and self._receiver is receiver:
            self._finish(receiver)
        else:
            self._pass_on(receiver)

    def connection_lost(self, error: BaseException | None) -> None:
        self._pool.closed(self)
        self._parser = None  # it has our methods: a cycle, which would stay until a collection
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if error is None and self._ends_with_connection:
            receiver.answered(b"")
        elif self.context is not None and not (self.heard or self.reused) and engine_refused_us(self.transport):
            receiver.lost(Failure.CLIENT_CERTIFICATE_REFUSED)
        else:
            receiver.lost(Failure.CONNECTION_LOST)

    # -- callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("an answer without a request")
        self._headers = {}
        self._ends_with_connection = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim or self._receiver is None:
            return
        headers = self._headers
        self._keep_alive = self._parser.should_keep_alive()
        framed = b"content-length" in headers or b"transfer-encoding" in headers
        self._ends_with_connection = not framed and status not in (204, 304)
        self._receiver.head(status, headers)

    def on_body(self, data: bytes) -> None:
        if self._receiver is not None:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self._complete = not self._interim

    # -- inside -------------------------------------------------------------------------------------------------------

    def _pass_on(self, receiver: Receiver) -> None:
        """Gives the receiver what was read of the body, unless it dropped the answer."""
        data = self._take_body()
        if data and self._receiver is receiver:
            try:
                receiver.body(data)
            except Exception:
                log.exception("passing on an answer failed")
                self._fail(Failure.UNREADABLE_ANSWER)

    def _take_body(self) -> bytes:
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return data

    def _finish(self, receiver: Receiver) -> None:
        data = self._take_body()
        self._receiver = None
        if self._keep_alive and not self.transport.is_closing():
            self.reused = True
            self.resume()
            self._pool.release(self)
        else:
            self.transport.close()
        try:
            receiver.answered(data)
        except Exception:
            log.exception("passing on the end of an answer failed")
            receiver.lost(Failure.UNREADABLE_ANSWER)

    def _fail(self, failure: Failure) -> None:
        receiver, self._receiver = self._receiver, None
        self.transport.abort()
        if receiver is not None:
            receiver.lost(failure)


_Connecting: TypeAlias = asyncio.Task[tuple[asyncio.Transport, UpstreamConnection]]


class ConnectionPool:
    """Connections to one engine. At most `max_idle` wait idle; the router's in-flight limit bounds those in use.

    tls: None for plain HTTP.
    """

    def __init__(
        self,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        *,
        max_idle: int,
        connect_timeout: float,
        tls: UpstreamTls | None = None,
    ) -> None:
        self.tls = tls
        self._host = host
        self._port = port
        self._loop = loop
        self._max_idle = max_idle
        self._timeout = connect_timeout
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._connecting: set[_Connecting] = set()
        self._closed = False

    def __len__(self) -> int:
        """Connections, with those that are being made."""
        return len(self._all) + len(self._connecting)

    def configure(self, *, max_idle: int, connect_timeout: float) -> None:
        """Sets other bounds, from the next connection on."""
        self._max_idle, self._timeout = max_idle, connect_timeout

    def take(self) -> UpstreamConnection | None:
        """Returns an idle connection; None without one."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.transport.is_closing():
                continue
            if self._is_current(connection):
                return connection
            connection.abandon()
        return None

    def connect(self, receiver: Receiver) -> None:
        """Makes a new connection, and calls `receiver.connected` or `receiver.unreachable`."""
        task = self._loop.create_task(fair_call(self._timeout, self._begin_connecting))
        self._connecting.add(task)
        task.add_done_callback(lambda done: self._end_connecting(done, receiver))

    def release(self, connection: UpstreamConnection) -> None:
        """Makes the connection idle, or closes it when enough are idle."""
        if self._closed or len(self._idle) >= self._max_idle or not self._is_current(connection):
            connection.abandon()
            return
        self._idle.append(connection)

    def opened(self, connection: UpstreamConnection) -> None:
        self._all.add(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Closes the idle connections now, and the others when their answer is complete."""
        self._closed = True
        for connection in tuple(self._idle):
            connection.abandon()

    def abort(self) -> None:
        """Closes all connections now."""
        self._closed = True
        for task in tuple(self._connecting):
            task.cancel()
        for connection in tuple(self._all):
            connection.abandon()

    def _begin_connecting(self) -> Coroutine[Any, Any, tuple[asyncio.Transport, UpstreamConnection]]:
        if self.tls is None:
            return self._loop.create_connection(lambda: UpstreamConnection(self), self._host, self._port)
        context = self.tls.context
        return self._loop.create_connection(
            lambda: UpstreamConnection(self, context),
            self._host,
            self._port,
            ssl=context,
            server_hostname=self.tls.server_name,
        )

    def _is_current(self, connection: UpstreamConnection) -> bool:
        """Whether a new connection would have the same context."""
        return self.tls is None or connection.context is self.tls.context

    def _end_connecting(self, task: _Connecting, receiver: Receiver) -> None:
        self._connecting.discard(task)
        if task.cancelled():
            return
        try:
            _, connection = task.result()
        except TimeoutError:
            receiver.unreachable(Failure.CONNECT_TIMEOUT)
        except ssl.SSLError as error:
            receiver.unreachable(tls_failure(error))
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            receiver.unreachable(Failure.CONNECT_REFUSED if refused else Failure.CONNECT_FAILED)
        except Exception:  # for example an invalid host name: the request must not wait forever
            log.exception("connecting to a replica failed")
            receiver.unreachable(Failure.CONNECT_FAILED)
        else:
            self._hand_over(connection, receiver)

    def _hand_over(self, connection: UpstreamConnection, receiver: Receiver) -> None:
        if connection not in self._all:  # the engine ended as it accepted the connection
            receiver.unreachable(Failure.CONNECT_FAILED)
            return
        try:
            sock = connection.transport.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            receiver.connected(connection)
        except Exception:
            log.exception("a new connection to a replica could not be used")
            connection.abandon()
            receiver.unreachable(Failure.CONNECT_FAILED)
