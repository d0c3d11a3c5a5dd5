"""A client's connection over TLS: what differs from plain TCP is its end.

TLS has no half-close here: a client that ends its stream ends the connection. Our end is a `close_notify`, and the
transport discards what the client still sends. So no reset can overtake the last answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Final

from plumage_router.http.downstream import LINGER, DownstreamConnection, DownstreamHost

__all__ = ["TlsConnection"]

_QUIET: Final = 3  # ticks in a row at which the system has no bytes for the client
_HIGH_WATER: Final = 65_536  # bytes to encrypt that wait for a slow client; the loop's default is eight times as much


class TlsConnection(DownstreamConnection):
    """`established`: the handshake has ended well. Before, the connection is not the port's yet."""

    __slots__ = ("_last", "_quiet", "established")

    def __init__(self, host: DownstreamHost, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(host, loop)
        self.established = False
        self._quiet = 0
        self._last = 0.0  # the end of a closing connection's time to read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established = True
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)

    def eof_received(self) -> bool:
        return False

    def expire(self) -> None:
        if self._closing and self._host.tick < self._last and not self._is_drained():
            self.deadline = self._host.tick
        else:
            super().expire()

    def close_when_idle(self) -> bool:
        """Closes an idle connection. A client that does not answer the `close_notify` is disconnected soon."""
        idle = super().close_when_idle()
        if idle and not self._closing:
            self._closing = True
            self._set_closing_deadline()
        return idle

    def _linger(self) -> None:
        self._closing = True
        self._parser.discard()
        self._set_closing_deadline()
        self.transport.close()

    def _set_closing_deadline(self) -> None:
        """Sets the deadline, which is checked again while the client has bytes to read."""
        self._last = self._host.tick + self._timeouts.write
        self.deadline = self._host.tick + LINGER

    def _is_drained(self) -> bool:
        """Whether the client's system has all bytes. The loop keeps bytes below TLS, which it does not show.

        It writes them as soon as the system has room. So it has none left if the system has none for some ticks.
        """
        self._quiet = 0 if self._has_unread_bytes() else self._quiet + 1
        return self._quiet >= _QUIET

    def _has_unread_bytes(self) -> bool:
        if self.transport.get_write_buffer_size() > 0:
            return True
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        unacknowledged = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return bool(struct.unpack("i", unacknowledged)[0] > 0)
