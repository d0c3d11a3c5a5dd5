"""gRPC over an HTTP/2 stream: messages in both directions, and the status at the end.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Messages are not compressed: the answer offers no
compression, so a peer sends none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, Protocol
from urllib.parse import quote

from plumage_router.extproc.http2 import Http2Connection, Http2Stream, StreamHandler, literal

__all__ = ["MAX_MESSAGE", "Call", "CallHandler", "GrpcStatus", "Methods"]

MAX_MESSAGE: Final = 4 << 20
"""Bytes; the bound of most gRPC servers. A proxy sends bodies in smaller pieces."""
_PREFIX: Final = 5
_STATUS_200: Final = b"\x88"  # `:status: 200` in the static table of RFC 7541
_HEAD: Final = _STATUS_200 + literal(b"content-type", b"application/grpc")
_UNSUPPORTED_MEDIA: Final = literal(b":status", b"415")
_MOST_TEXT: Final = 100  # characters of a status message


class GrpcStatus(IntEnum):
    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallHandler(Protocol):
    """Serves one call."""

    def message(self, data: bytes) -> None: ...

    def half_closed(self) -> None:
        """The caller sends no more. The handler ends the call."""
        ...

    def aborted(self) -> None:
        """The call is gone, or `Call` ended it after a wrong message."""
        ...


class Call:
    """One call. `handler` is set by the maker of the handler."""

    __slots__ = ("_rest", "_size", "_stream", "handler")

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._rest = bytearray()  # of a message that is not complete
        self._size = _PREFIX  # bytes until something can be read
        self.handler: CallHandler | None = None
        stream.head(_HEAD)

    @property
    def open(self) -> bool:
        return self._stream.open

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._stream.send(b"\x00" + len(message).to_bytes(4) + message)

    def end(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        self._stream.end(_trailers(status, text))

    # -- callbacks of the stream --------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._size:
                return
            data, self._rest = bytes(self._rest), bytearray()
        at, total = 0, len(data)
        while total - at >= _PREFIX:
            size = int.from_bytes(data[at + 1 : at + _PREFIX])
            if data[at] or size > MAX_MESSAGE:
                self._refuse(compressed=bool(data[at]))
                return
            end = at + _PREFIX + size
            if end > total:
                self._rest, self._size = bytearray(data[at:]), _PREFIX + size
                return
            if self.handler is None or not self._stream.open:
                return
            self.handler.message(data[at + _PREFIX : end])
            at = end
        if at < total:
            self._rest, self._size = bytearray(data[at:]), _PREFIX

    def half_closed(self) -> None:
        if self.handler is not None:
            self.handler.half_closed()

    def aborted(self) -> None:
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.aborted()

    def _refuse(self, *, compressed: bool) -> None:
        if compressed:
            self.end(GrpcStatus.UNIMPLEMENTED, "compressed messages are not read")
        else:
            self.end(GrpcStatus.RESOURCE_EXHAUSTED, f"a message has more than {MAX_MESSAGE} bytes")
        self.aborted()


class Methods:
    """The `Http2Host` of gRPC connections. methods: make the handler of a call, by path.

    `connections`: those that are open, at most `max_connections`, each with at most `max_streams` calls.
    """

    def __init__(
        self, methods: Mapping[bytes, Callable[[Call], CallHandler]], *, max_connections: int, max_streams: int
    ) -> None:
        self.max_streams = max_streams
        self.connections: set[Http2Connection] = set()
        self._methods = methods
        self._max_connections = max_connections

    def opened(self, connection: Http2Connection) -> bool:
        self.connections.add(connection)
        return len(self.connections) <= self._max_connections

    def closed(self, connection: Http2Connection) -> None:
        self.connections.discard(connection)

    def handler(self, headers: dict[bytes, bytes], stream: Http2Stream) -> StreamHandler | None:
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            stream.end(_UNSUPPORTED_MEDIA)
            return None
        call = Call(stream)
        make = self._methods.get(headers.get(b":path", b""))
        if make is None or headers.get(b":method") != b"POST":
            call.end(GrpcStatus.UNIMPLEMENTED, "this server has no such method")
            return None
        call.handler = make(call)
        return call


def _trailers(status: GrpcStatus, text: str) -> bytes:
    block = literal(b"grpc-status", b"%d" % status)
    if text:
        block += literal(b"grpc-message", quote(text[:_MOST_TEXT], safe=" ")[:_MOST_TEXT].encode())
    return block
