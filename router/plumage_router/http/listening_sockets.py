"""The sockets on which a router listens. If one cannot be bound, the others are closed: ConfigurationError.

To pause accepting, the event loop's handle on a listening socket is closed; the socket itself stays open. TLS is for
TCP sockets only.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from plumage.errors import ConfigurationError
from plumage.settings.router_config import ListenConfig
from plumage_router.http.tls import TlsAcceptor

__all__ = ["ListeningSockets", "address", "bind", "tune", "unbind"]

_CONNECT_TIMEOUT = 1.0  # seconds for another process that listens on a Unix socket


class _Accepting(Protocol):
    def close(self) -> None: ...


class _TlsServer:
    """Passes a listening socket to the acceptor whenever a connection waits there."""

    def __init__(self, sock: socket.socket, acceptor: TlsAcceptor, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._loop = loop
        loop.add_reader(sock, acceptor.accept, sock)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()


class _Handed(Protocol):
    """See `handover.HandedConnections`."""

    def start(self) -> None: ...

    def accept(self) -> None: ...

    def pause(self) -> None: ...

    def stop(self) -> None: ...


class ListeningSockets:
    """The sockets of one router. connection: makes the protocol of each accepted connection.

    tls: accepts the connections of TCP sockets; None for plain HTTP. handed: a supervisor's connections, if any.
    """

    def __init__(
        self,
        config: ListenConfig,
        connection: Callable[[], asyncio.Protocol],
        loop: asyncio.AbstractEventLoop,
        tls: TlsAcceptor | None = None,
        handed: _Handed | None = None,
    ) -> None:
        self._config = config
        self._connection = connection
        self._loop = loop
        self._tls = tls
        self._handed = handed
        self._sockets: list[socket.socket] = []
        self._servers: list[_Accepting] = []

    @property
    def addresses(self) -> list[str]:
        """The addresses: `HOST:PORT` or a path."""
        return [address(sock) for sock in self._sockets]

    @property
    def accepting(self) -> bool:
        return bool(self._servers)

    async def start(self) -> None:
        """Binds the sockets and accepts connections. Raises ConfigurationError if a socket cannot be bound."""
        self._sockets = bind(self._config)
        if self._handed is not None:
            self._handed.start()
        await self._accept()

    async def accept(self) -> None:
        """Ends a pause. It goes on where no descriptor is free: call it again later."""
        try:
            await self._accept()
        except OSError:
            self.pause()

    async def _accept(self) -> None:
        for sock in self._sockets:
            handle = sock.dup()
            if self._tls is not None and sock.family != socket.AF_UNIX:
                self._servers.append(_TlsServer(handle, self._tls, self._loop))
                continue
            create = self._loop.create_unix_server if sock.family == socket.AF_UNIX else self._loop.create_server
            kept: dict[str, Any] = {}
            if "cleanup_socket" in inspect.signature(create).parameters:  # from 3.13 on: a pause would remove the path
                kept["cleanup_socket"] = False
            self._servers.append(await create(self._connection, sock=handle, backlog=self._config.backlog, **kept))
        if self._handed is not None:
            self._handed.accept()

    def pause(self) -> None:
        """Lets new connections wait in the system's queue."""
        if self._handed is not None:
            self._handed.pause()
        for server in self._servers:
            server.close()
        self._servers.clear()

    def stop(self) -> None:
        """Closes all sockets, and connections within their handshake."""
        self.pause()
        if self._handed is not None:
            self._handed.stop()
        if self._tls is not None:
            self._tls.stop()
        while self._sockets:
            unbind(self._sockets.pop())


def bind(listen: ListenConfig) -> list[socket.socket]:
    """Returns the listening sockets, TCP first."""
    with ExitStack() as bound:
        sockets = [bound.enter_context(begin(listen)) for begin in _wanted(listen)]
        if not sockets:
            raise ConfigurationError("listen: give a port, a uds path, or both")
        for sock in sockets:
            tune(sock)
        bound.pop_all()
    return sockets


def _wanted(listen: ListenConfig) -> Iterator[Callable[[ListenConfig], socket.socket]]:
    if listen.port is not None:
        yield _bind_port
    if listen.uds is not None:
        yield _bind_path


def _bind_port(listen: ListenConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=listen.backlog)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {listen.host}:{listen.port}: {error.strerror}; choose another port"
        ) from error


def _bind_path(listen: ListenConfig) -> socket.socket:
    path = Path(listen.uds or "")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_abandoned(path)
        sock.bind(str(path))
        sock.listen(listen.backlog)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)  # the error of a too long path has no errno
        raise ConfigurationError(f"cannot listen on {path}: {reason}; choose another uds path") from error
    except ConfigurationError:
        sock.close()
        raise
    return sock


def _remove_abandoned(path: Path) -> None:
    """Removes the socket file that a killed process left behind; never anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"cannot listen on {path}: it exists and is not a socket; choose another uds path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_CONNECT_TIMEOUT)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise ConfigurationError(
        f"cannot listen on {path}: another process listens there; stop it or choose another uds path"
    )


def tune(sock: socket.socket) -> None:
    """Sets options, which accepted sockets inherit: no delay for small writes, and detection of vanished peers."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def unbind(sock: socket.socket) -> None:
    """Closes a listening socket and removes its path."""
    path = sock.getsockname() if sock.family == socket.AF_UNIX else None
    sock.close()
    if path:
        Path(path).unlink(missing_ok=True)


def address(sock: socket.socket) -> str:
    """`HOST:PORT` or a path."""
    name = sock.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"
