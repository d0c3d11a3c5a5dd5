"""Clients' connections from the supervisor, which keeps a copy of each (`plumage.handover`).

Messages to the supervisor are sent at once: no answer to a client may overtake them. The supervisor reads them in a
thread of its own, so the system's buffer is seldom full. If it does not read for too long, this process ends. The
supervisor was stopped, and passes the connections to the next router once it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import Callable
from typing import Final, NoReturn

from plumage.errors import ConfigurationError
from plumage.handover import MAX_FDS, RECEIVE, Kind, Message, MessageReader, count_in, message
from plumage_router.http.downstream import DownstreamHost
from plumage_router.http.handed_connection import HandedConnection
from plumage_router.http.listening_sockets import tune

__all__ = ["HandedConnections"]

log = logging.getLogger(__name__)

_SEND_TIMEOUT: Final = 10.0  # seconds until the supervisor must have read
_WARN_AGAIN: Final = 60.0  # seconds


class HandedConnections:
    """The clients that a supervisor passes on. descriptor: `listen.handover_fd`. pause_soon: has `pause` called soon,
    and `accept` later."""

    def __init__(
        self,
        descriptor: int,
        host: DownstreamHost,
        loop: asyncio.AbstractEventLoop,
        pause_soon: Callable[[], object],
    ) -> None:
        self._descriptor = descriptor
        self._host = host
        self._pause_soon = pause_soon
        self._loop = loop
        self._reader = MessageReader()
        self._arriving: dict[int, tuple[socket.socket | None, int | None, bytearray]] = {}  # some bytes are missing
        self._descriptors: list[int | None] = []  # received, the oldest first; None for one that the system dropped
        self._opening: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._accepting = False
        self._warned = -_WARN_AGAIN

    def start(self) -> None:
        """Raises ConfigurationError if the descriptor is not a socket to a supervisor."""
        self._socket = _inherited(self._descriptor)
        self._loop.add_reader(self._socket, self._receive)

    def accept(self) -> None:
        """Takes connections."""
        self._accepting = True
        self.report(Kind.ACCEPT)

    def pause(self) -> None:
        """Lets new connections wait with the supervisor. Those that it has sent already are taken."""
        if self._accepting:
            self._accepting = False
            self.report(Kind.PAUSE)

    def stop(self) -> None:
        """Takes no more connections. Reports go on until the process ends."""
        self.pause()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)

    def report(self, kind: Kind, connection: int = 0, payload: bytes = b"") -> None:
        """Sends a message. Ends the process if the supervisor does not read."""
        assert self._socket is not None, "started"
        left = memoryview(message(kind, connection, payload))
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait_until_writable(self._socket)
            except OSError as error:
                _end(f"the supervisor's socket is closed ({error.strerror})")

    def _wait_until_writable(self, sock: socket.socket) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        if not poll.poll(_SEND_TIMEOUT * 1000):
            _end(f"the supervisor has read nothing for {_SEND_TIMEOUT:g} s")

    def _receive(self) -> None:
        assert self._socket is not None, "started"
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, RECEIVE, MAX_FDS)
        except BlockingIOError:
            return
        except OSError as error:
            _end(f"the supervisor's socket can't be read ({error.strerror})")
        if not data:
            _end("the supervisor closed its socket")
        self._descriptors += descriptors
        if flags & socket.MSG_CTRUNC:
            self._descriptors.append(None)
        try:
            for one in self._reader.feed(data):
                self._take(one)
        except (ValueError, LookupError) as error:  # what follows can't be read either
            _end(f"the supervisor's messages can't be read ({error!r})")

    def _take(self, one: Message) -> None:
        if one.kind is Kind.CONNECTION:
            descriptor = self._descriptors.pop(0)
            sock = None if descriptor is None else socket.socket(fileno=descriptor)
            if sock is not None:
                sock.set_inheritable(False)
            arriving = self._arriving[one.connection] = (sock, count_in(one.payload), bytearray())
        elif one.kind is Kind.BYTES:
            arriving = self._arriving[one.connection]
            arriving[2].extend(one.payload)
        else:
            raise ValueError(f"a supervisor sends no {one.kind.name}")
        sock, size, received = arriving
        if len(received) < (size or 0):
            return
        del self._arriving[one.connection]
        if sock is None:
            self._give_back(one.connection)
            return
        task = self._loop.create_task(self._open(sock, one.connection, None if size is None else bytes(received)))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _give_back(self, number: int) -> None:
        """The supervisor still has the connection. It passes it to another router, or here a tick later."""
        self.report(Kind.RETURNED, number)
        self._pause_soon()
        if self._loop.time() > self._warned + _WARN_AGAIN:
            self._warned = self._loop.time()
            log.warning("no file descriptor is free for a connection: raise the limit of open files (ulimit -n)")

    async def _open(self, sock: socket.socket, number: int, received: bytes | None) -> None:
        try:
            sock.setblocking(False)
            tune(sock)
            await self._loop.connect_accepted_socket(
                lambda: HandedConnection(self._host, self._loop, self, number, received), sock
            )
        except OSError as error:  # the client is gone
            log.debug("a connection from the supervisor can't be used: %s", error)
            sock.close()
            self.report(Kind.DROP, number)


def _inherited(descriptor: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=os.dup(descriptor))
    except OSError as error:
        raise ConfigurationError(f"listen.handoverFd {descriptor} cannot be used: {error.strerror}") from error
    if sock.family != socket.AF_UNIX:
        sock.close()
        raise ConfigurationError(f"listen.handoverFd {descriptor} is not a Unix socket to a supervisor")
    sock.setblocking(False)
    return sock


def _end(reason: str) -> NoReturn:
    """Ends the process at once. Its connections would otherwise be served here and by the next router."""
    log.critical("this router ends, and its clients' connections wait for the next one: %s", reason)
    logging.shutdown()
    os._exit(1)
