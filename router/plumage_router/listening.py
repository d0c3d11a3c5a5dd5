"""The sockets a router listens on. What can't be had is a ConfigurationError, and what was bound before is let go."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from plumage.errors import ConfigurationError
from plumage_router.config import ListenConfig

__all__ = ["address", "bind", "unbind"]

ANSWER = 1.0  # seconds that a process listening on a Unix socket has to let us connect


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
