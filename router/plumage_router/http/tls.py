"""Accepts connections over TLS, and bounds those whose handshake has not ended, in number and time.

A connection becomes one of the port's when its handshake has ended. A client that connects and stays silent would hold
a place for the whole timeout. So at the bound the oldest handshake gives its place to the next connection. A young
one keeps it: the router is busy with honest clients then, and the next ones wait in the system's queue.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, Protocol, cast

from plumage.prometheus import exposition
from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.clock import monotonic
from plumage_router.process.server_certificate import ServerCertificate

__all__ = ["AcceptedConnection", "HandshakeFailure", "HandshakeHost", "TlsAcceptor", "tls_lines"]

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64  # connections that are accepted before the loop goes on with other work
_YOUNG: Final = 2.0  # seconds: a handshake takes two round trips, and a millisecond or two of CPU
_PLAIN: Final = frozenset(("HTTP_REQUEST", "HTTPS_PROXY_REQUEST"))  # OpenSSL's reasons


class HandshakeFailure(StrEnum):
    """Why a connection ended within its handshake."""

    PLAIN_HTTP = "plain_http"
    PROTOCOL = "protocol"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    REPLACED = "replaced"


class HandshakeHost(Protocol):
    """The bounds of handshakes."""

    limits: LimitsConfig
    timeouts: TimeoutsConfig


class AcceptedConnection(Protocol):
    """The asyncio protocol of a connection. `established`: the handshake has ended well."""

    established: bool


class _Handshake:
    """replaced: it gave its place to a newer one."""

    __slots__ = ("began", "connection", "replaced", "sock")

    def __init__(self, sock: socket.socket, connection: AcceptedConnection) -> None:
        self.sock = sock
        self.connection = connection
        self.began = monotonic()
        self.replaced = False

    def end(self) -> None:
        """Ends the connection, unless its handshake just ended well. Its task ends as if the client had closed it."""
        if not self.connection.established:
            with suppress(OSError):  # the client was faster
                self.sock.shutdown(socket.SHUT_RDWR)


class TlsAcceptor:
    """The accepting side of one port.

    connect: makes the asyncio protocol of each connection. pause: see `Listener.pause_accepting`.
    `failed`: handshakes that failed, by reason.
    """

    def __init__(
        self,
        host: HandshakeHost,
        certificate: ServerCertificate,
        connect: Callable[[], AcceptedConnection],
        pause: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.certificate = certificate
        self.failed: Counter[HandshakeFailure] = Counter()
        self._host = host
        self._connect = connect
        self._pause = pause
        self._loop = loop
        self._open: dict[asyncio.Task[None], _Handshake] = {}  # the oldest first
        self._ending: set[asyncio.Task[None]] = set()  # replaced; they end within a turn of the loop

    @property
    def handshakes(self) -> int:
        """Connections whose handshake has not ended."""
        return len(self._open)

    @property
    def can_accept(self) -> bool:
        """Whether there is room for a handshake, or an old one can give its place."""
        if len(self._open) < self._host.limits.max_handshakes:
            return True
        oldest = next(iter(self._open.values()))
        return monotonic() - oldest.began >= _YOUNG

    def accept(self, listening: socket.socket) -> None:
        """Call when the listening socket is readable."""
        for _ in range(_AT_ONCE):
            if not self.can_accept:
                self._pause()
                return
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory: the next tick tries again
                log.warning("cannot accept a connection: %s", error.strerror)
                self._pause()
                return
            self._begin(sock)

    def stop(self) -> None:
        """Ends all handshakes: none of these clients has sent a request."""
        for handshake in self._open.values():
            handshake.end()

    def _begin(self, sock: socket.socket) -> None:
        if len(self._open) >= self._host.limits.max_handshakes:
            self._replace_oldest()
        sock.setblocking(False)
        handshake = _Handshake(sock, self._connect())
        task = self._loop.create_task(self._shake(handshake))
        self._open[task] = handshake
        task.add_done_callback(self._forget)

    def _replace_oldest(self) -> None:
        task, handshake = next(iter(self._open.items()))
        del self._open[task]
        self._ending.add(task)
        handshake.replaced = True
        handshake.end()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._ending.discard(task)

    async def _shake(self, handshake: _Handshake) -> None:
        connection, timeouts = handshake.connection, self._host.timeouts
        error: OSError | None = None
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.BaseProtocol, connection),
                handshake.sock,
                ssl=self.certificate.context,
                ssl_handshake_timeout=timeouts.handshake,
                ssl_shutdown_timeout=timeouts.write,
            )
        except OSError as failure:
            error = failure
        if not connection.established:
            reason = HandshakeFailure.REPLACED if handshake.replaced else _reason(error)
            self.failed[reason] += 1
            log.debug("TLS handshake failed: %s (%s)", reason, error)


def _reason(error: OSError | None) -> HandshakeFailure:
    """error: None where the connection was lost without one."""
    if isinstance(error, ssl.SSLError):
        return HandshakeFailure.PLAIN_HTTP if error.reason in _PLAIN else HandshakeFailure.PROTOCOL
    if isinstance(error, ConnectionAbortedError):  # what the loop raises at its timeout
        return HandshakeFailure.TIMEOUT
    return HandshakeFailure.CLOSED


def tls_lines(prefix: str, acceptors: Sequence[TlsAcceptor]) -> Iterator[str]:
    """Returns the metrics of the ports with TLS, which have one certificate; none without such a port."""
    if not acceptors:
        return
    yield from exposition.gauge(
        prefix + "certificate_expiry_timestamp_seconds",
        "When the certificate in use expires, in seconds since 1970.",
        min(acceptor.certificate.expires for acceptor in acceptors),
    )
    yield from exposition.counter(
        prefix + "certificate_reload_failures",
        "Changes of the certificate or its key that could not be used.",
        max(acceptor.certificate.failures for acceptor in acceptors),
    )
    handshakes = sum(acceptor.handshakes for acceptor in acceptors)
    yield from exposition.gauge(
        prefix + "tls_handshakes", "Client connections whose TLS handshake has not ended.", handshakes
    )
    failed = {reason.value: sum(one.failed[reason] for one in acceptors) for reason in HandshakeFailure}
    yield from exposition.counters(
        prefix + "tls_handshakes_failed", "TLS handshakes that failed, by reason.", "reason", failed
    )
