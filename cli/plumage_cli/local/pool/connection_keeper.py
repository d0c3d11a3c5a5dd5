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
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from plumage.handover import MAX_PAYLOAD, Kind, Message, MessageReader, connection_message, count_in, message
from plumage.open_files import files_of_router
from plumage_cli.errors import CliError
from plumage_router.http.written_bytes import written_bytes

__all__ = ["MOST_BYTES", "MOST_ROUTERS", "ConnectionKeeper"]

log = logging.getLogger(__name__)

MOST_BYTES: Final = 256 << 20
"""Of requests in all connections, until their answers end. One that exceeds it is lost if its router is killed."""
MOST_ROUTERS: Final = 3
"""Routers that end with the same request until its connection is closed: the request may be the cause."""
_ACCEPT_AT_ONCE: Final = 64
_RECEIVE: Final = 1 << 18  # bytes at once
_RETRY: Final = 0.1  # seconds until connections are accepted again after the system refused one
_STOP: Final = 5.0  # seconds for the thread to end
_SPARE: Final = 64  # descriptors that stay free to start a router; a quarter of all where few are allowed
_REPORT_AGAIN: Final = 60.0  # seconds between two reports that connections must wait


@dataclass(slots=True)
class _Connection:
    """router: the number of the one that serves it; None while it waits for one. received: the present requests' bytes.
    written: `written_bytes` when these began. answered: it had an answer. ended: how many routers ended with them."""

    sock: socket.socket
    router: int | None = None
    received: list[bytes] = field(default_factory=list)
    written: int | None = None
    answering: bool = False
    answered: bool = False
    ended: int = 0

    @property
    def has_answer(self) -> bool:
        """Whether the client has a part of the answer, or may have it. A router reports that it answers a moment before
        it writes."""
        if not self.answering:
            return False
        return not self.received or self.written is None or self.written != written_bytes(self.sock.fileno())


class _Router:
    """The socket to one router process. accepts: it takes connections. connections: how many it has now. passed: how
    many it has had."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.accepts = False
        self.connections = self.passed = 0
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
    """Accepts the connections of one listening socket, and passes each to the router with the fewest.

    Routers have numbers. Call `renew` before each start of one, `ended` when it has ended, and `close` at the end.
    report: gets a line for each connection that is given up, and where connections must wait for a descriptor; it is
    called in the keeper's thread.
    """

    def __init__(
        self, listener: socket.socket, most_connections: int, report: Callable[[str], None], *, routers: int = 1
    ) -> None:
        self._listener: socket.socket | None = listener
        listener.setblocking(False)
        self._report = report
        self._connections: dict[int, _Connection] = {}
        self._next = 1
        self._bytes = 0
        self._refused = False  # the system had no descriptor for the last connection
        self._full = False  # the descriptors that are left are not for connections
        self._reported = -_REPORT_AGAIN
        self._routers: dict[int, _Router] = {}
        self._calls: deque[Callable[[], None]] = deque()  # for the thread
        self._received = memoryview(bytearray(_RECEIVE))  # a new object for each message would fragment the heap
        self._closing = False
        self._wakes, self._wake = socket.socketpair()
        self._wakes.setblocking(False)
        self._children = [_unconnected() for _ in range(routers)]  # `renew` connects them; their descriptors stay
        self._most_files = _raise_file_limit(most_connections * routers)
        self._thread = threading.Thread(target=self._run, name="connection-keeper", daemon=True)
        self._thread.start()

    def child_descriptor(self, router: int = 0) -> int:
        """The descriptor that each process of this router inherits."""
        return self._children[router].fileno()

    @property
    def kept(self) -> int:
        """Connections that another router would get, should theirs end."""
        return len(self._connections)

    def renew(self, router: int = 0) -> None:
        """Connects the router that starts next. CliError if the thread has ended, without which no router is of use."""
        if not self._thread.is_alive():
            raise CliError("the thread that accepts connections has ended: start the pool again, and report its log")
        ours, theirs = socket.socketpair()
        os.dup2(theirs.fileno(), self.child_descriptor(router), inheritable=False)
        theirs.close()
        self._call(partial(self._connect, router, ours))

    def ended(self, router: int = 0) -> None:
        """Passes the router's connections to others, or to the next one that starts."""
        self._call(partial(self._disconnect, router))

    def stop_accepting(self) -> None:
        """Closes the listening socket. New clients are refused."""
        self._call(self._close_listener)

    def close(self) -> None:
        """Closes everything, also the connections without an answer."""
        self._closing = True
        self._wake.send(b"\0")
        self._thread.join(_STOP)
        for sock in (self._wake, self._wakes, *self._children):
            sock.close()

    def _call(self, act: Callable[[], None]) -> None:
        self._calls.append(act)
        self._wake.send(b"\0")

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            while self._calls:
                self._calls.popleft()()  # a socket of `renew` is closed below
            self._close_listener()
            for sock in [one.sock for one in self._routers.values()] + [one.sock for one in self._connections.values()]:
                sock.close()
            self._connections.clear()

    def _turn(self) -> None:
        """Waits for one event, and handles all that have occurred."""
        poll, listener = select.poll(), self._listener
        poll.register(self._wakes, select.POLLIN)
        for router in self._routers.values():
            poll.register(router.sock, select.POLLIN | (select.POLLOUT if router.waits_to_send else 0))
        may_accept = not self._refused and not self._full
        if listener is not None and may_accept and self._least_busy(with_room=True) is not None:
            poll.register(listener, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(_RETRY * 1000 if self._refused else None)}
        self._refused = False
        for number, router in list(self._routers.items()):
            if router.sock.fileno() in ready:
                self._serve(number, router)
        if listener is not None and listener.fileno() in ready:
            self._accept(listener)
        if self._wakes.fileno() in ready:
            with suppress(BlockingIOError):
                self._wakes.recv(4096)
            while self._calls:
                self._calls.popleft()()

    def _connect(self, number: int, sock: socket.socket) -> None:
        self._disconnect(number)
        self._routers[number] = _Router(sock)

    def _disconnect(self, number: int) -> None:
        """A router has ended. Its clients get another one, but for those that have a part of an answer."""
        former = self._routers.get(number)
        if former is not None:
            while self._serve(number, former):
                pass  # what it reported before it ended
            former.sock.close()
            self._routers.pop(number, None)
        for connection, one in list(self._connections.items()):
            if one.router == number:
                self._keep_or_close(connection, one)
        self._pass_on_waiting()

    def _keep_or_close(self, number: int, connection: _Connection) -> None:
        connection.router = None
        if connection.has_answer:
            self._drop(number)
            return
        connection.answering = False
        connection.ended += bool(connection.received)
        if connection.ended >= MOST_ROUTERS:
            self._report(
                f"closed a client's connection: {connection.ended} routers have ended with its request unanswered"
            )
            self._drop(number)

    def _least_busy(self, *, with_room: bool) -> int | None:
        """The number of the router that gets a connection; None if none takes any. with_room: only of those that have
        read what was sent."""
        taking = [one for one, router in self._routers.items() if router.accepts]
        if with_room:
            taking = [one for one in taking if not self._routers[one].waits_to_send]
        return min(taking, key=lambda one: (self._routers[one].connections, self._routers[one].passed), default=None)

    def _pass_on_waiting(self) -> None:
        for number, connection in self._connections.items():
            if connection.router is None and (chosen := self._least_busy(with_room=False)) is not None:
                self._pass_on(number, connection, chosen)

    def _pass_on(self, number: int, connection: _Connection, chosen: int) -> None:
        router, connection.router = self._routers[chosen], chosen
        router.connections += 1
        router.passed += 1
        received = b"".join(connection.received)
        known = connection.answered or bool(received)
        router.send(connection_message(number, len(received) if known else None), connection.sock)
        for start in range(0, len(received), MAX_PAYLOAD):
            router.send(message(Kind.BYTES, number, received[start : start + MAX_PAYLOAD]))
        router.flush()

    def _serve(self, number: int, router: _Router) -> bool:
        """Sends and receives. Returns whether more may be received."""
        router.flush()
        try:
            size = router.sock.recv_into(self._received)
            for one in router.reader.feed(self._received[:size]):
                self._take(router, one)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        except ValueError as error:
            log.error("the router's messages can't be read: %s", error)
            size = 0
        if not size:
            router.sock.close()  # a router that still runs ends then
            self._routers.pop(number, None)
        return size > 0

    def _take(self, router: _Router, one: Message) -> None:
        if one.kind is Kind.ACCEPT:
            router.accepts = True
            self._pass_on_waiting()
            return
        if one.kind is Kind.PAUSE:
            router.accepts = False
            return
        connection = self._connections.get(one.connection)
        if connection is None:
            return  # dropped
        if one.kind is Kind.REQUEST_BEGINS:
            connection.written = count_in(one.payload)
        elif one.kind is Kind.RECEIVED:
            self._add(one.connection, connection, one.payload)
        elif one.kind is Kind.ANSWER_BEGINS:
            connection.answering = True
        elif one.kind is Kind.ANSWERED:
            self._forget_bytes(connection)
            connection.answering, connection.answered, connection.ended = False, True, 0
        elif one.kind is Kind.DROP:
            self._drop(one.connection)
        elif one.kind is Kind.RETURNED:
            router.accepts, connection.router = False, None
            router.connections -= 1
            self._pass_on_waiting()
        else:
            raise ValueError(f"a router sends no {one.kind.name}")

    def _add(self, number: int, connection: _Connection, data: bytes) -> None:
        if self._bytes + len(data) > MOST_BYTES:
            for one in self._connections.values():
                if one.has_answer:
                    self._forget_bytes(one)
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
        self._full = False
        if connection.router in self._routers:
            self._routers[connection.router].connections -= 1

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            if (chosen := self._least_busy(with_room=True)) is None:
                break
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # no descriptor or no memory
                self._report_wait(f"cannot accept a connection: {error.strerror}")
                self._refused = True
                break
            connection = self._connections[self._next] = _Connection(sock)
            self._pass_on(self._next, connection, chosen)
            self._next += 1
            if sock.fileno() >= self._most_files:
                self._report_wait(f"{len(self._connections):,} connections are open, and new ones wait")
                self._full = True
                break

    def _report_wait(self, what: str) -> None:
        if time.monotonic() - self._reported > _REPORT_AGAIN:
            self._reported = time.monotonic()
            self._report(f"{what}: raise the limit of open files (ulimit -n)")

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _unconnected() -> socket.socket:
    unused, child = socket.socketpair()
    unused.close()
    return child


def _raise_file_limit(most_connections: int) -> int:
    """Raises the limit of open files for a copy of each connection, as far as the system allows. Returns the lowest
    descriptor that no connection should have: the system gives the lowest that is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_of_router(most_connections, 0)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    return soft - min(_SPARE, soft // 4)
