"""The far side of an HTTP/2 connection, frame by frame, on a transport, a loop and a clock that a test moves."""

from __future__ import annotations

from typing import Any

from hpack import Encoder

from plumage.settings.router_config import LimitsConfig, TimeoutsConfig
from plumage_router.extproc.grpc import Call, Methods
from plumage_router.extproc.http2 import Http2Connection
from plumage_router.http.body_memory import BodyMemory

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = 1
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED, CALM = 1, 3, 4, 5, 11
PATH = b"/test.Service/Echo"
TIMEOUTS = TimeoutsConfig(header=10, body=60, keep_alive=75, write=60)


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + number.to_bytes(4) + payload


BEGIN = PREFACE + frame(SETTINGS, 0, 0)


def message(data: bytes) -> bytes:
    return b"\x00" + len(data).to_bytes(4) + data


class Transport:
    """Keeps what is written. `full`: after a write it has no room, until `drain`."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.closed = self.aborted = self.reading_paused = self.full = False
        self.protocol: Any = None
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        assert not self.closed, "nothing can be written after the end"
        self.out += data
        self.writes.append(len(data))
        if self.full and self.protocol is not None:
            self.protocol.pause_writing()

    def drain(self) -> None:
        self.full = False
        self.protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 1 if self.full else 0

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        self.high_water = high

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.7", 4711) if name == "peername" else None


class Loop:
    """Runs what is scheduled when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_soon(self, call: Any) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        """Runs until nothing is left."""
        while self.calls:
            calls, self.calls = self.calls, []
            for call in calls:
                call()


class Bounds:
    """A router's limits, as far as gRPC connections need them."""

    def __init__(self, **limits: Any) -> None:
        self.limits = LimitsConfig(**limits)
        self.timeouts = TIMEOUTS
        self.body_memory = BodyMemory(self.limits.max_buffered_bytes)
        self.tick = 1_000.0


class Echo:
    """Sends each message back, and ends with the peer."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.got: list[bytes] = []
        self.state = "open"

    def message(self, data: bytes) -> None:
        self.got.append(data)
        self.call.send(data)

    def half_closed(self) -> None:
        self.state = "half closed"
        self.call.end()

    def crowded(self) -> None:
        self.state = "crowded"
        self.call.end()

    def expired(self) -> None:
        self.state = "expired"
        self.call.end()

    def aborted(self) -> None:
        self.state = "aborted"


class Peer:
    """A connection and its far side. methods: of another connection to the same port."""

    def __init__(
        self,
        *,
        max_streams: int = 8,
        max_connections: int = 8,
        methods: Methods | None = None,
        calls: list[Echo] | None = None,
        **limits: Any,
    ) -> None:
        self.calls: list[Echo] = [] if calls is None else calls
        if methods is None:
            self.bounds = Bounds(max_in_flight=max_streams, **limits)
            methods = Methods({PATH: self._make}, self.bounds, max_connections=max_connections)
        self.methods = methods
        self.loop: Any = Loop()
        self.transport: Any = Transport()
        self.connection = Http2Connection(methods, self.loop)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.encoder = Encoder()
        self._at = 0

    def other(self) -> Peer:
        """Another connection to the same port."""
        return Peer(methods=self.methods, calls=self.calls)

    @property
    def memory(self) -> BodyMemory:
        return self.methods.memory

    def _make(self, call: Call) -> Echo:
        self.calls.append(Echo(call))
        return self.calls[-1]

    def send(self, *data: bytes, whole: bool = True) -> list[tuple[int, int, int, bytes]]:
        """Returns the frames that come back."""
        joined = b"".join(data)
        for piece in [joined] if whole else [joined[at : at + 1] for at in range(len(joined))]:
            self.connection.data_received(piece)
        return self.frames()

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        self.loop.turn()
        found, out = [], bytes(self.transport.out)
        while self._at < len(out):
            size = int.from_bytes(out[self._at : self._at + 3])
            kind, flags = out[self._at + 3], out[self._at + 4]
            number = int.from_bytes(out[self._at + 5 : self._at + 9])
            found.append((kind, flags, number, out[self._at + 9 : self._at + 9 + size]))
            self._at += 9 + size
        return found

    def after(self, seconds: float) -> list[tuple[int, int, int, bytes]]:
        """Time passes. Returns the frames that come."""
        self.methods.sweep(self.methods.tick + seconds)
        return self.frames()

    def headers(self, path: bytes = PATH) -> bytes:
        fields = [(b":method", b"POST"), (b":path", path), (b":scheme", b"http"), (b":authority", b"x"),
                  (b"content-type", b"application/grpc"), (b"te", b"trailers")]  # fmt: skip
        return bytes(self.encoder.encode(fields))

    def start(self, number: int = 1, **more: Any) -> bytes:
        return frame(HEADERS, 0x4, number, self.headers(**more))


def goaway(frames: list[tuple[int, int, int, bytes]]) -> tuple[int, int] | None:
    """The last stream and the code of the last GOAWAY; None without one."""
    found = [payload for kind, _, number, payload in frames if (kind, number) == (GOAWAY, 0)]
    return (int.from_bytes(found[-1][:4]), int.from_bytes(found[-1][4:8])) if found else None
