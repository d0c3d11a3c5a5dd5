"""TCP ports of this machine: find free ones, and name the process that uses one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from plumage_cli.errors import CliError, PortTakenError
from plumage_cli.local.plan.paths import HOST

__all__ = ["free_ports", "listen_at", "require_free"]

# Below Linux' range for outgoing connections, which could take a port between our check and our use.
_FIRST, _LAST = 20_000, 32_000
_BACKLOG = 4096  # connections that may wait for a router; net.core.somaxconn may lower it


def require_free(host: str, port: int) -> None:
    """PortTakenError, with the process that uses the port where that is known. CliError for another failure."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(f"port {port} is in use{_holder(port)}; choose another one with --port") from None
        raise CliError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another with --host and --port"
        ) from None


def listen_at(host: str, port: int) -> socket.socket:
    """A listening socket for the router's clients."""
    require_free(host, port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CliError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another with --host and --port"
        ) from None


def free_ports(count: int, taken: Iterable[int], start: int) -> list[int]:
    """`count` free ports, none of `taken`; the search begins at `start` and wraps around. CliError without enough."""
    found: list[int] = []
    avoid = set(taken)
    span = _LAST - _FIRST
    for offset in range(span):
        port = _FIRST + (start + offset) % span
        if port not in avoid and _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise CliError(f"fewer than {count} free ports from {_FIRST} to {_LAST}; stop a program that listens there")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    """The process that listens there, as far as this user may see it."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (OSError, psutil.Error):
        return ""
    return ""
