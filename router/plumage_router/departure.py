"""Whether a client that ended its own stream still wants its answer.

A client that closes its socket and one that only ends its requests (half-close) send the same. The former's system
answers a further byte with a reset, which shows here; the latter's takes an interim response and goes on waiting.
"""

from __future__ import annotations

import asyncio
import select

__all__ = ["has_left"]


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Is the other side of this socket gone altogether?"""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    look = select.poll()
    look.register(sock.fileno(), 0)  # POLLHUP and POLLERR are always reported
    return bool(look.poll(0))
