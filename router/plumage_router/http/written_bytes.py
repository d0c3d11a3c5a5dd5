"""How many bytes a TCP connection's processes have written, also those that ended.

Linux counts the bytes that the other side confirmed (`tcpi_bytes_acked`) and those that wait for it. The sum starts at
any number, so only two sums of one connection can be compared.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Final

__all__ = ["written_bytes"]

_CONFIRMED: Final = struct.Struct("=Q")
_CONFIRMED_AT: Final = 120  # of `tcp_info`, see linux/tcp.h
_WAITING: Final = struct.Struct("=i")


def written_bytes(descriptor: int) -> int | None:
    """None where the system does not count them."""
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)  # the family does not matter
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _CONFIRMED_AT + _CONFIRMED.size)
        finally:
            sock.detach()  # the descriptor is the caller's
        (confirmed,) = _CONFIRMED.unpack_from(info, _CONFIRMED_AT)
        (waiting,) = _WAITING.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_WAITING.size)))
    except (OSError, AttributeError, struct.error):
        return None
    return int(confirmed) + int(waiting)
