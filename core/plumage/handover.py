"""How a supervisor and a router pass clients' connections to each other. No I/O.

The supervisor accepts each connection, passes it to the router, and keeps a copy of the socket. The router reports the
bytes that it received, and when an answer begins and ends. If the router ends without an answer's first byte, the
supervisor passes the connection and its bytes to the next router, as if the client had just sent them (0332).

Both sides use a pair of Unix stream sockets. A message is a header (kind, connection, length of the payload in bytes)
and a payload. `Kind.CONNECTION` has the socket as ancillary data of its first byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = [
    "MAX_FDS",
    "MAX_PAYLOAD",
    "RECEIVE",
    "Kind",
    "Message",
    "MessageReader",
    "connection_message",
    "count_in",
    "message",
    "packed_count",
]

MAX_PAYLOAD: Final = 1 << 20
"""Bytes of one message. A longer one means that the stream is damaged."""
RECEIVE: Final = 1 << 16
"""Bytes to receive at once."""
MAX_FDS: Final = 16
"""Sockets that one call may receive: the system never joins the bytes of two messages that have some."""
_HEADER: Final = struct.Struct("!BQI")
_COUNT: Final = struct.Struct("!Q")


class Kind(IntEnum):
    """CONNECTION and BYTES go to the router, all others to the supervisor; `RECEIVED` has bytes of the client."""

    CONNECTION = 1
    """A client's connection. The payload is the number of bytes that an earlier router received of a request; it is
    empty if the connection is new."""
    BYTES = 2
    """A part of these bytes."""
    REQUEST_BEGINS = 3
    """A request's first bytes come next. The payload is the number of bytes written to the client (`written_bytes`)."""
    RECEIVED = 4
    """The router received these bytes of a request."""
    ANSWER_BEGINS = 5
    """Once more bytes are written than before the request, it is not passed to another router."""
    ANSWERED = 6
    """The answer has ended, and nothing of a next request has arrived."""
    DROP = 7
    """The copy of the connection is not needed: it is closed, or the client sends requests before it has answers."""
    ACCEPT = 8
    """The router takes connections."""
    PAUSE = 9
    """The router has too many connections, or drains. New ones wait in the system's queue."""
    RETURNED = 10
    """The router has no free descriptor for this connection. It takes no others until it says so (`ACCEPT`)."""


class Message(NamedTuple):
    """connection: its number, given by the supervisor; 0 for ACCEPT and PAUSE."""

    kind: Kind
    connection: int
    payload: bytes


def message(kind: Kind, connection: int = 0, payload: bytes = b"") -> bytes:
    """The bytes of a message. Raises ValueError if the payload is too long."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a message has {len(payload):,} bytes, at most {MAX_PAYLOAD:,} are allowed")
    return _HEADER.pack(kind, connection, len(payload)) + payload


def connection_message(connection: int, received: int | None) -> bytes:
    """The message with which a connection is passed on. received: bytes that follow in messages of kind BYTES; None for
    a new connection."""
    return message(Kind.CONNECTION, connection, packed_count(received))


def packed_count(count: int | None) -> bytes:
    """A number as a payload; nothing if it is not known."""
    return b"" if count is None else _COUNT.pack(count)


def count_in(payload: bytes) -> int | None:
    """The number in the payload of a CONNECTION or REQUEST_BEGINS. Raises ValueError if it is something else."""
    if not payload:
        return None
    try:
        return int(_COUNT.unpack(payload)[0])
    except struct.error as error:
        raise ValueError(f"a number has a payload of {len(payload)} bytes") from error


class MessageReader:
    """Divides a stream into messages. An incomplete message waits for its rest."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[Message]:
        """The messages that are complete. Raises ValueError if the stream is damaged."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _HEADER.size:
                kind, connection, length = _HEADER.unpack_from(buffer, start)
                if length > MAX_PAYLOAD:
                    raise ValueError(f"a message of {length:,} bytes, at most {MAX_PAYLOAD:,} are allowed")
                end = start + _HEADER.size + length
                if len(buffer) < end:
                    break
                yield Message(Kind(kind), connection, bytes(buffer[start + _HEADER.size : end]))
                start = end
        finally:
            del buffer[:start]
