"""The supervisor's side of `plumage.handover`: accepts clients' connections, and keeps them while routers come and go.

It runs in a thread of its own, because a router waits until its reports are read.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from plumage.handover import MAX_PAYLOAD, Kind, Message, MessageReader, connection_message, message
from plumage.open_files import files_of_router
from plumage_cli.errors import CliError

__all__ = ["MOST_BYTES", "MOST_ROUTERS", "ConnectionKeeper"]

log = logging.getLogger(__name__)

MOST_BYTES: Final = 256 << 20
"""Of requests without an answer, in all connections. One that exceeds it is lost if its router is killed."""
MOST_ROUTERS: Final = 3
"""That may end with the same request, which may be why they end. Then its connection is closed."""
_ACCEPT_AT_ONCE: Final = 64
_RECEIVE: Final = 1 << 18  # bytes at once
_RETRY: Final = 0.1  # seconds until connections are accepted again after the system refused one
_STOP: Final = 5.0  # seconds for the thread to end


@dataclass(slots=True)
class _Connection:
    """received: of requests without an answer. routers: how many ended with them."""

    sock: socket.socket
    received: list[bytes] = field(default_factory=list)
    answering: bool = False
    routers: int = 0


class _Router:
    """The socket to one router process. began: it has got the connections of the former one. accepts: it takes more."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.began = False
        self.accepts = False
        self.reader = MessageReader()
        self._out: deque[tuple[bytes, socket.socket | None]] = deque()

    @property
    def waits_to_send(self) -> bool:
        return bool(self._out)

    def send(self, data: bytes, passed: socket.socket | None = None) -> None:
        self._out.append((data, passed))

    def flush(self) -> None:
        """Sends what the system takes. A router that has ended gets nothing more."""
        while self._out:
            data, passed = self._out[0]
            try:
                sent = self.sock.send(data) if passed is None else socket.send_fds(self.sock, [data], [passed.fileno()])
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                return
            self._out.popleft()
            if sent < len(data):
                self._out.appendleft((data[sent:], None))


class ConnectionKeeper:
    """Accepts the connections of one listening socket, for one router at a time.

    Call `renew` before each start of the router, and `close` at the end. report: gets a line for each connection that
    is given up; it is called in the keeper's thread.
    """

    def __init__(self, listener: socket.socket, most_connections: int, report: Callable[[str], None]) -> None:
        self._listener: socket.socket | None = listener
        listener.setblocking(False)
        self._report = report
        self._connections: dict[int, _Connection] = {}
        self._next = 1
        self._bytes = 0
        self._refused = False  # the system had no descriptor for the last connection
        self._router: _Router | None = None
        self._changes: deque[socket.socket | None] = deque()  # the next router's socket; None: accept no more
        self._closing = False
        self._wakes, self._wake = socket.socketpair()
        self._wakes.setblocking(False)
        unused, self._child = socket.socketpair()  # replaced by each `renew`; the descriptor's number stays
        unused.close()
        _raise_file_limit(most_connections)
        self._thread = threading.Thread(target=self._run, name="connection-keeper", daemon=True)
        self._thread.start()

    @property
    def child_descriptor(self) -> int:
        """The descriptor that the router inherits, the same for each."""
        return self._child.fileno()

    @property
    def kept(self) -> int:
        """Connections that the next router would get."""
        return len(self._connections)

    def renew(self) -> None:
        """Call when the former router has ended, before the next one starts: it gets the connections. CliError if the
        thread has ended, which no router can do without."""
        if not self._thread.is_alive():
            raise CliError("the thread that accepts connections has ended: start the pool again, and report its log")
        ours, theirs = socket.socketpair()
        os.dup2(theirs.fileno(), self.child_descriptor, inheritable=False)
        theirs.close()
        self._changes.append(ours)
        self._wake.send(b"\0")

    def stop_accepting(self) -> None:
        """Closes the listening socket. New clients are refused."""
        self._changes.append(None)
        self._wake.send(b"\0")

    def close(self) -> None:
        """Closes everything, also the connections without an answer."""
        self._closing = True
        self._wake.send(b"\0")
        self._thread.join(_STOP)
        for sock in (self._wake, self._wakes, self._child):
            sock.close()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            self._close_listener()
            if self._router is not None:
                self._router.sock.close()
            for sock in (*(one.sock for one in self._connections.values()), *filter(None, self._changes)):
                sock.close()
            self._connections.clear()
            self._changes.clear()

    def _turn(self) -> None:
        """Waits for one event, and handles all that have occurred."""
        poll, router, listener = select.poll(), self._router, self._listener
        poll.register(self._wakes, select.POLLIN)
        if router is not None:
            poll.register(router.sock, select.POLLIN | (select.POLLOUT if router.waits_to_send else 0))
            if listener is not None and router.accepts and not router.waits_to_send and not self._refused:
                poll.register(listener, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(_RETRY * 1000 if self._refused else None)}
        self._refused = False
        if router is not None and router.sock.fileno() in ready:
            self._serve(router)
        if listener is not None and listener.fileno() in ready and router is self._router:
            self._accept(listener)
        if self._wakes.fileno() in ready:
            with suppress(BlockingIOError):
                self._wakes.recv(4096)
            while self._changes:
                self._change(self._changes.popleft())

    def _change(self, sock: socket.socket | None) -> None:
        if sock is None:
            self._close_listener()
            return
        former = self._router
        if former is not None:
            while self._serve(former):
                pass  # what it reported before it ended
        for number, connection in list(self._connections.items()):
            self._keep_or_close(number, connection)
        self._router = _Router(sock)

    def _keep_or_close(self, number: int, connection: _Connection) -> None:
        """A router has ended: its client gets another one, unless it has a part of an answer."""
        connection.routers += bool(connection.received)
        if connection.answering or connection.routers >= MOST_ROUTERS:
            if not connection.answering:
                self._report(
                    f"closed a client's connection: {connection.routers} routers have ended with its request unanswered"
                )
            self._drop(number)

    def _serve(self, router: _Router) -> bool:
        """Sends and receives. Returns whether more may be received."""
        router.flush()
        try:
            data = router.sock.recv(_RECEIVE)
            for one in router.reader.feed(data):
                self._take(router, one)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        except ValueError as error:
            log.error("the router's messages can't be read: %s", error)
            data = b""
        if not data:
            router.sock.close()  # a router that still runs ends then
            if router is self._router:
                self._router = None
        return bool(data)

    def _take(self, router: _Router, one: Message) -> None:
        if one.kind is Kind.ACCEPT:
            router.accepts = True
            if not router.began:
                router.began = True
                for number, kept in self._connections.items():
                    _pass_on(router, number, kept)
                router.flush()
            return
        if one.kind is Kind.PAUSE:
            router.accepts = False
            return
        connection = self._connections.get(one.connection)
        if connection is None:
            return  # dropped
        if one.kind is Kind.RECEIVED:
            self._add(one.connection, connection, one.payload)
        elif one.kind is Kind.ANSWER_BEGINS:
            self._forget_bytes(connection)
            connection.answering = True
        elif one.kind is Kind.ANSWERED:
            self._forget_bytes(connection)
            connection.answering, connection.routers = False, 0
        elif one.kind is Kind.DROP:
            self._drop(one.connection)
        else:
            raise ValueError(f"a router sends no {one.kind.name}")

    def _add(self, number: int, connection: _Connection, data: bytes) -> None:
        if self._bytes + len(data) > MOST_BYTES:
            self._drop(number)
            return
        connection.received.append(data)
        self._bytes += len(data)

    def _forget_bytes(self, connection: _Connection) -> None:
        self._bytes -= sum(map(len, connection.received))
        connection.received.clear()

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number)
        self._forget_bytes(connection)
        connection.sock.close()

    def _accept(self, listener: socket.socket) -> None:
        router = self._router
        assert router is not None, "the caller checks it"
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # no descriptor or no memory
                log.warning("cannot accept a connection: %s", error.strerror)
                self._refused = True
                break
            connection = self._connections[self._next] = _Connection(sock)
            _pass_on(router, self._next, connection)
            self._next += 1
        router.flush()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _pass_on(router: _Router, number: int, connection: _Connection) -> None:
    received = b"".join(connection.received)
    router.send(connection_message(number, len(received)), connection.sock)
    for start in range(0, len(received), MAX_PAYLOAD):
        router.send(message(Kind.BYTES, number, received[start : start + MAX_PAYLOAD]))


def _raise_file_limit(most_connections: int) -> None:
    """Raises the limit of open files for a copy of each connection, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_of_router(most_connections, 0)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
