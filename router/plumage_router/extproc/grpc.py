"""gRPC over an HTTP/2 stream: messages in both directions, and the status at the end.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Messages are not compressed: the answer offers no
compression, so a peer sends none. The bytes of a message that is not complete count in the memory of request bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, Protocol
from urllib.parse import quote

from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.extproc.frames import literal
from plumage_router.extproc.http2 import Http2Connection
from plumage_router.extproc.http2_stream import Http2Stream, StreamHandler
from plumage_router.http.body_memory import BodyMemory, BodyReservation

__all__ = ["MAX_MESSAGE", "Bounds", "Call", "CallHandler", "GrpcStatus", "Methods"]

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
    DEADLINE_EXCEEDED = 4
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

    def crowded(self) -> None:
        """There is no memory for the rest of a message. The handler ends the call."""
        ...

    def expired(self) -> None:
        """The call's deadline passed. The handler ends the call, or sets another one."""
        ...

    def aborted(self) -> None:
        """The call is gone, or `Call` ended it after a wrong message."""
        ...


class Call:
    """One call. `handler` is set by the maker of the handler."""

    __slots__ = ("_held", "_over", "_rest", "_size", "_stream", "handler")

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._rest = bytearray()  # of a message that is not complete
        self._size = _PREFIX  # bytes until something can be read
        self._held: BodyReservation | None = None  # the memory of `_rest`
        self._over = False
        self.handler: CallHandler | None = None
        stream.head(_HEAD)

    @property
    def open(self) -> bool:
        return self._stream.open

    @property
    def peer(self) -> str:
        """The caller's address; "" on a Unix socket."""
        return self._stream.peer

    def expire_at(self, deadline: float) -> None:
        """Sets when `expired` of the handler is called, in seconds of the router's clock."""
        self._stream.deadline = deadline

    def send(self, *messages: bytes, held: BodyReservation | None = None) -> None:
        """held: the memory of a body in the messages; it is released once the caller has the bytes."""
        if held is not None:
            if not self._stream.open:
                self._stream.memory.release(held)
                return
            self._stream.keep(held)
        for message in messages:
            self._stream.send(b"\x00" + len(message).to_bytes(4) + message)
        if held is not None:
            self._stream.finish_body()

    def end(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        self._over = True
        self._drop()
        self._stream.end(_trailers(status, text))

    # -- callbacks of the stream --------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self._over:
            return
        if self._rest:
            if not self._reserve(len(data)):
                return
            self._rest += data
            if len(self._rest) < self._size:
                return
            data = bytes(self._rest)
            self._drop()
        at, total = 0, len(data)
        while total - at >= _PREFIX:
            size = int.from_bytes(data[at + 1 : at + _PREFIX])
            if data[at] or size > MAX_MESSAGE:
                self._refuse(compressed=bool(data[at]))
                return
            end = at + _PREFIX + size
            if end > total:
                self._keep(data[at:], _PREFIX + size)
                return
            if self.handler is None or self._over or not self._stream.open:
                return
            self.handler.message(data[at + _PREFIX : end])
            at = end
        if at < total and not self._over:
            self._keep(data[at:], _PREFIX)

    def half_closed(self) -> None:
        if self.handler is not None:
            self.handler.half_closed()

    def expired(self) -> None:
        if self.handler is not None:
            self.handler.expired()

    def aborted(self) -> None:
        self._over = True
        self._drop()
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.aborted()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _keep(self, rest: bytes, size: int) -> None:
        """rest: the beginning of a message. size: bytes until it can be read."""
        if self._reserve(len(rest)):
            self._rest, self._size = bytearray(rest), size

    def _reserve(self, size: int) -> bool:
        """Memory for further bytes of a message. Returns False if the call ended for want of it."""
        if self._held is None:
            self._held = BodyReservation(self._stream.peer, self._crowded)
        held, memory = self._held, self._stream.memory
        if not memory.reserve(held, size):
            if not self._over:
                self._crowded()
            return False
        if self._over:  # it made room for its own message
            memory.release(held)
            return False
        memory.unfinished(held)
        return True

    def _crowded(self) -> None:
        self._drop()
        if self.handler is not None:
            self.handler.crowded()

    def _drop(self) -> None:
        """Frees the message that is not complete."""
        self._rest = bytearray()
        held, self._held = self._held, None
        if held is not None:
            self._stream.memory.release(held)

    def _refuse(self, *, compressed: bool) -> None:
        if compressed:
            self.end(GrpcStatus.UNIMPLEMENTED, "compressed messages are not read")
        else:
            self.end(GrpcStatus.RESOURCE_EXHAUSTED, f"a message has more than {MAX_MESSAGE} bytes")
        self.aborted()


class Bounds(Protocol):
    """What gRPC connections use of their router. tick: a coarse clock in seconds."""

    limits: LimitsConfig
    timeouts: TimeoutsConfig
    body_memory: BodyMemory
    tick: float


class Methods:
    """The `Http2Host` of gRPC connections. methods: make the handler of a call, by path.

    `connections`: those that are open, at most `max_connections`. A connection has at most `limits.max_in_flight`
    calls, and all have at most `limits.max_connections`: as many as clients of the router's own port.
    """

    def __init__(
        self, methods: Mapping[bytes, Callable[[Call], CallHandler]], bounds: Bounds, *, max_connections: int
    ) -> None:
        self.memory = bounds.body_memory
        self.tick = bounds.tick
        self.connections: set[Http2Connection] = set()
        self._methods = methods
        self._bounds = bounds
        self._max_connections = max_connections
        self._streams = 0

    @property
    def max_streams(self) -> int:
        return self._bounds.limits.max_in_flight

    @property
    def timeouts(self) -> TimeoutsConfig:
        return self._bounds.timeouts

    @property
    def window(self) -> int:
        return self._bounds.limits.max_buffered_bytes

    @property
    def streams(self) -> int:
        """Open calls of all connections."""
        return self._streams

    def sweep(self, now: float) -> None:
        """Call with each tick, with seconds of the router's clock."""
        self.tick = now
        for connection in tuple(self.connections):
            connection.sweep(now)

    def opened(self, connection: Http2Connection) -> bool:
        self.connections.add(connection)
        return len(self.connections) <= self._max_connections

    def closed(self, connection: Http2Connection) -> None:
        self.connections.discard(connection)

    def stream_opened(self) -> bool:
        if self._streams >= self._bounds.limits.max_connections:
            return False
        self._streams += 1
        return True

    def stream_closed(self) -> None:
        self._streams -= 1

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
