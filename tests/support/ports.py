"""Ports for processes that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

__all__ = ["free_port", "free_ports"]

# Below 32768: from there on Linux takes ports for outgoing connections, and would take one between our look and the
# child's use of it, or connect a test that polls for the child to itself. A Cluster's bus is 10000 above its port.
FIRST, LAST = 20_000, 22_700
BUS = 10_000
_PICKED: set[int] = set()


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Ports that nobody uses at this moment, each with the port 10000 above it; none is given twice."""
    found: list[int] = []
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        if len(found) == number:
            return found
        with socket.socket() as one, socket.socket() as bus, suppress(OSError):
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            if port not in _PICKED:
                _PICKED.add(port)
                found.append(port)
    raise AssertionError(f"no {number} free ports between {FIRST} and {LAST}")
