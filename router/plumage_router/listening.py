"""The sockets a router listens on. What can't be had is a ConfigurationError, and what was bound before is let go.

Accepting is paused by closing the event loop's handle on a listening socket while the socket itself stays open.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage_router.config import ListenConfig

__all__ = ["Listening", "address", "bind", "unbind"]

ANSWER = 1.0  # seconds that a process listening on a Unix socket has to let us connect


class Listening:
    """The sockets of one router. `connection`: makes the protocol of each connection that is accepted."""

    def __init__(
        self, config: ListenConfig, connection: Callable[[], asyncio.Protocol], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._config = config
        self._connection = connection
        self._loop = loop
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    @property
    def addresses(self) -> list[str]:
        """Where it listens: `HOST:PORT` or a path."""
        return [address(sock) for sock in self._sockets]

    @property
    def accepting(self) -> bool:
        return bool(self._servers)

    async def begin(self) -> None:
        """Binds, and accepts. ConfigurationError where a socket can't be had."""
        self._sockets = bind(self._config)
        await self.accept()

    async def accept(self) -> None:
        for sock in self._sockets:
            handle = sock.dup()
            create = self._loop.create_unix_server if sock.family == socket.AF_UNIX else self._loop.create_server
            kept: dict[str, Any] = {}
            if "cleanup_socket" in inspect.signature(create).parameters:  # from 3.13 on: a pause would remove the path
                kept["cleanup_socket"] = False
            self._servers.append(await create(self._connection, sock=handle, backlog=self._config.backlog, **kept))

    def pause(self) -> None:
        """Newcomers wait in the system's queue."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def end(self) -> None:
        """Nobody comes any more."""
        self.pause()
        while self._sockets:
            unbind(self._sockets.pop())


def bind(listen: ListenConfig) -> list[socket.socket]:
    """The listening sockets, TCP first."""
    with ExitStack() as bound:
        sockets = [bound.enter_context(begin(listen)) for begin in _wanted(listen)]
        if not sockets:
            raise ConfigurationError("listen: give a port, a uds path, or both")
        for sock in sockets:
            _tune(sock)
        bound.pop_all()
    return sockets


def _wanted(listen: ListenConfig) -> Iterator[Callable[[ListenConfig], socket.socket]]:
    if listen.fd is not None:
        yield _take_over
    elif listen.port is not None:
        yield _bind_port
    if listen.uds is not None:
        yield _bind_path


def _take_over(listen: ListenConfig) -> socket.socket:
    """A socket of the parent's. Closing it here leaves it open there."""
    assert listen.fd is not None, "asked for because it is set"
    try:
        sock = socket.socket(fileno=os.dup(listen.fd))
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or not sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            sock.close()
            raise ConfigurationError(f"listen.fd {listen.fd} is no listening TCP socket")
    except OSError as error:
        raise ConfigurationError(f"listen.fd {listen.fd} can't be used: {error.strerror}") from error
    return sock


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
        reason = error.strerror or str(error)  # a path that is too long has no errno
        raise ConfigurationError(f"cannot listen on {path}: {reason}; choose another uds path") from error
    except ConfigurationError:
        sock.close()
        raise
    return sock


def _remove_abandoned(path: Path) -> None:
    """A process that was killed leaves its socket's path behind. Nothing else may be removed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"cannot listen on {path}: it is there and no socket; choose another uds path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise ConfigurationError(f"cannot listen on {path}: another process does; stop it or choose another uds path")


def _tune(sock: socket.socket) -> None:
    """Accepted sockets inherit these: no delay for small writes, and a peer that vanished is found out."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def unbind(sock: socket.socket) -> None:
    """Closes a listening socket, and takes its path away."""
    path = sock.getsockname() if sock.family == socket.AF_UNIX else None
    sock.close()
    if path:
        Path(path).unlink(missing_ok=True)


def address(sock: socket.socket) -> str:
    """`HOST:PORT` or a path."""
    name = sock.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"
