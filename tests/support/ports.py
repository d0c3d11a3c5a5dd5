"""Ports for processes that tests start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

__all__ = ["free_port", "free_ports"]

# Below 32768: Linux uses higher ports for outgoing connections. It could take one before the child binds it, or connect
# a test that polls for the child to itself. A Cluster's bus has a port that is higher by 10000.
FIRST, LAST = 20_000, 22_700
BUS = 10_000
# One file a port, locked as long as this process lives: test processes run side by side, and a server may bind its port
# seconds after the choice.
_LOCKS = Path(gettempdir()) / f"plumage-test-ports-{os.getuid()}"
_PICKED: dict[int, int] = {}


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Ports that are free now, each with the port 10000 above it. No port is returned twice."""
    found: list[int] = []
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        if len(found) == number:
            return found
        if port not in _PICKED and _unused(port) and _lock(port):
            found.append(port)
    raise AssertionError(f"no {number} free ports between {FIRST} and {LAST}")


def _unused(port: int) -> bool:
    with socket.socket() as one, socket.socket() as bus, suppress(OSError):
        one.bind(("127.0.0.1", port))
        bus.bind(("127.0.0.1", port + BUS))
        return True
    return False


def _lock(port: int) -> bool:
    """False if another test process has it."""
    _LOCKS.mkdir(exist_ok=True)
    file = os.open(_LOCKS / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _PICKED[port] = file
        return True
    os.close(file)
    return False
