"""Frames of HTTP/2: what a peer may do wrong, windows, and streams that end in each way."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hpack import Encoder

from plumage_router.extproc.grpc import MAX_MESSAGE, Call, Methods
from plumage_router.extproc.http2 import Http2Connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
PATH = b"/test.Service/Echo"


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + number.to_bytes(4) + payload


def message(data: bytes) -> bytes:
    return b"\x00" + len(data).to_bytes(4) + data


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.closed = self.aborted = self.reading_paused = False

    def write(self, data: bytes) -> None:
        self.out += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False


class Loop:
    """Runs what is scheduled when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_soon(self, call: Any) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


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

    def aborted(self) -> None:
        self.state = "aborted"


class Peer:
    """A connection and its far side."""

    def __init__(self, *, max_streams: int = 8, max_connections: int = 8) -> None:
        self.calls: list[Echo] = []
        self.methods = Methods({PATH: self._make}, max_connections=max_connections, max_streams=max_streams)
        self.loop: Any = Loop()
        self.transport: Any = Transport()
        self.connection = Http2Connection(self.methods, self.loop)
        self.connection.connection_made(self.transport)
        self.encoder = Encoder()
        self._at = 0

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

    def headers(self, path: bytes = PATH) -> bytes:
        fields = [(b":method", b"POST"), (b":path", path), (b":scheme", b"http"), (b":authority", b"x"),
                  (b"content-type", b"application/grpc"), (b"te", b"trailers")]  # fmt: skip
        return bytes(self.encoder.encode(fields))

    def start(self, number: int = 1, **more: Any) -> bytes:
        return frame(HEADERS, 0x4, number, self.headers(**more))


@pytest.fixture
def peer() -> Peer:
    made = Peer()
    made.send(PREFACE, frame(SETTINGS, 0, 0))
    return made


@pytest.mark.parametrize("whole", [True, False])
def test_call_is_answered_however_its_bytes_arrive(whole: bool) -> None:
    peer = Peer()
    got = peer.send(
        PREFACE, frame(SETTINGS, 0, 0), peer.start(), frame(DATA, 0, 1, message(b"one") + message(b"two")[:4]),
        frame(DATA, 0x1, 1, message(b"two")[4:]), whole=whole,
    )  # fmt: skip
    assert peer.calls[0].got == [b"one", b"two"]
    sent = b"".join(payload for kind, _, number, payload in got if (kind, number) == (DATA, 1))
    assert sent == message(b"one") + message(b"two")
    kind, flags, number, payload = got[-1]
    assert (kind, flags, number) == (HEADERS, 0x5, 1)
    assert b"grpc-status\x010" in payload
    assert not peer.connection.streams


def test_equal_headers_are_read_once_and_rightly_with_a_table(peer: Peer) -> None:
    peer.encoder.header_table_size = 0
    for number in (1, 3, 5):
        peer.send(frame(HEADERS, 0x4, number, peer.headers()))
    assert len(peer.calls) == 3
    other = Peer()  # its far side keeps a table, so equal bytes would have another meaning later
    other.send(PREFACE, frame(SETTINGS, 0, 0))
    for number, path in ((1, PATH), (3, b"/other"), (5, PATH), (7, PATH)):
        other.send(other.start(number, path=path))
    assert len(other.calls) == 3


def test_continued_and_padded_headers(peer: Peer) -> None:
    block = peer.headers()
    padded = bytes((3,)) + b"\x00\x00\x00\x00\x10" + block[:5] + b"\x00" * 3
    peer.send(frame(HEADERS, 0x8 | 0x20, 1, padded), frame(CONTINUATION, 0, 1, block[5:9]))
    assert not peer.calls
    peer.send(frame(CONTINUATION, 0x4, 1, block[9:]), frame(DATA, 0x8, 1, b"\x02" + message(b"x") + b"\x00" * 2))
    assert peer.calls[0].got == [b"x"]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 1),
        (PREFACE + frame(DATA, 0, 0, b"x"), 1),
        (PREFACE + frame(DATA, 0, 1, b"x"), 1),
        (PREFACE + frame(HEADERS, 0x4, 2, b""), 1),
        (PREFACE + frame(CONTINUATION, 0x4, 1, b""), 1),
        (PREFACE + frame(PUSH, 0, 1, b""), 1),
        (PREFACE + frame(PING, 0, 0, b"short"), 6),
        (PREFACE + frame(SETTINGS, 0, 0, b"short"), 6),
        (PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), 3),
        (PREFACE + frame(WINDOW_UPDATE, 0, 0, b"\x00\x00\x00\x00"), 1),
        (PREFACE + frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), 3),
        (PREFACE + frame(HEADERS, 0x4, 1, b"\xff\xff\xff\xff\xff"), 9),
        (PREFACE + (65_537).to_bytes(3) + b"\x00\x00\x00\x00\x00\x01", 6),
        (PREFACE + frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, b"8" * 8), 1),
        (PREFACE + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"x" * 40_000) * 2, 11),
        (PREFACE + frame(RST_STREAM, 0, 1, b"\x00" * 4), 1),
    ],
)  # fmt: skip
def test_peer_that_breaks_the_rules_gets_the_reason(frames: bytes, code: int) -> None:
    peer = Peer()
    got = peer.send(frames)
    kind, _, number, payload = got[-1]
    assert (kind, number, int.from_bytes(payload[4:8])) == (GOAWAY, 0, code)
    assert peer.transport.closed
    assert peer.send(frame(PING, 0, 0, b"8" * 8)) == []


def test_pings_and_unknown_frames(peer: Peer) -> None:
    assert peer.send(frame(PING, 0, 0, b"12345678")) == [(PING, 1, 0, b"12345678")]
    assert peer.send(frame(PING, 1, 0, b"12345678"), frame(PRIORITY, 0, 1, b"12345"), frame(200, 0, 1, b"?")) == []


def test_what_exceeds_a_window_waits(peer: Peer) -> None:
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 10)), peer.start())
    got = peer.send(frame(DATA, 0x1, 1, message(b"0123456789")))
    assert [payload for kind, _, _, payload in got if kind == DATA] == [message(b"0123456789")[:10]]
    assert got[-1][0] == DATA, "the trailers wait too"
    got = peer.send(frame(WINDOW_UPDATE, 0, 1, (3).to_bytes(4)))
    assert [payload for kind, _, _, payload in got if kind == DATA] == [message(b"0123456789")[10:13]]
    got = peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1000)))
    assert [payload for kind, _, _, payload in got if kind == DATA] == [message(b"0123456789")[13:]]
    assert (HEADERS, 0x5, 1) in [entry[:3] for entry in got]


def test_window_of_the_connection_is_shared(peer: Peer) -> None:
    big = b"x" * 60_000
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)), peer.start(1), peer.start(3))
    got = peer.send(frame(DATA, 0, 1, message(big)), frame(DATA, 0, 3, message(big)))
    assert sum(len(payload) for kind, _, _, payload in got if kind == DATA) == 65_535
    got = peer.send(frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4)))
    assert sum(len(payload) for kind, _, _, payload in got if kind == DATA) == 2 * 60_005 - 65_535


def test_peer_may_send_again_what_was_read(peer: Peer) -> None:
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1)),
              frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4)), peer.start())  # fmt: skip
    granted = 0
    piece = frame(DATA, 0, 1, message(b"x" * 65_000))
    for _ in range(32):
        granted += sum(int.from_bytes(payload) for kind, _, number, payload in peer.send(piece)
                       if kind == WINDOW_UPDATE and number == 1)  # fmt: skip
    assert 1 << 20 <= granted <= 32 * 65_005


def test_peer_that_does_not_read_may_not_send(peer: Peer) -> None:
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)), peer.start())
    piece, granted = frame(DATA, 0, 1, message(b"x" * 65_000)), 0
    for _ in range(48):
        granted += sum(int.from_bytes(payload) for kind, _, number, payload in peer.send(piece)
                       if kind == WINDOW_UPDATE and number == 1)  # fmt: skip
    assert granted < 2 << 20, "its window is not renewed"
    got = peer.send(frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4)),
                    frame(WINDOW_UPDATE, 0, 1, (1 << 30).to_bytes(4)))  # fmt: skip
    assert any(kind == WINDOW_UPDATE and number == 1 for kind, _, number, _ in got)


def test_slow_reader_is_not_read_from(peer: Peer) -> None:
    peer.connection.pause_writing()
    assert peer.transport.reading_paused
    peer.connection.resume_writing()
    assert not peer.transport.reading_paused


@pytest.mark.parametrize("how", ["reset", "lost", "window"])
def test_stream_that_is_gone_reaches_its_handler(peer: Peer, how: str) -> None:
    peer.send(peer.start(), frame(DATA, 0, 1, message(b"x")))
    if how == "reset":
        peer.send(frame(RST_STREAM, 0, 1, b"\x00" * 4))
    elif how == "lost":
        peer.connection.connection_lost(None)
    else:
        peer.send(frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"))
    assert peer.calls[0].state == "aborted"
    peer.calls[0].call.send(b"late")
    peer.calls[0].call.end()
    assert not any(kind == DATA for kind, *_ in peer.frames())
    assert not peer.connection.streams


def test_streams_are_bounded() -> None:
    peer = Peer(max_streams=2)
    got = peer.send(PREFACE, frame(SETTINGS, 0, 0), peer.start(1), peer.start(3), peer.start(5))
    assert got[-1] == (RST_STREAM, 0, 5, (7).to_bytes(4))
    assert len(peer.calls) == 2


def test_connections_are_bounded() -> None:
    peer = Peer(max_connections=1)
    second: Any = Transport()
    connection = Http2Connection(peer.methods, peer.loop)
    connection.connection_made(second)
    assert second.aborted
    connection.connection_lost(None)
    assert len(peer.methods.connections) == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\x01" + (3).to_bytes(4) + b"abc", b"12"), (b"\x00" + (MAX_MESSAGE + 1).to_bytes(4), b"8")],
)
def test_message_that_is_not_read_ends_its_call(peer: Peer, data: bytes, status: bytes) -> None:
    got = peer.send(peer.start(), frame(DATA, 0, 1, data))
    trailers = [payload for kind, flags, _, payload in got if kind == HEADERS and flags & 1]
    assert b"grpc-status" + bytes((len(status),)) + status in trailers[0]
    assert peer.calls[0].state == "aborted"


def test_unknown_method_and_wrong_media_type(peer: Peer) -> None:
    got = peer.send(peer.start(path=b"/other"))
    assert b"grpc-status\x0212" in got[-2][3]
    block = bytes(peer.encoder.encode([(b":method", b"GET"), (b":path", b"/")]))
    got = peer.send(frame(HEADERS, 0x5, 3, block))
    assert b"415" in got[-1][3]


def test_leaving_connection_ends_its_streams_first(peer: Peer) -> None:
    peer.send(peer.start(1))
    peer.connection.go_away()
    assert any(kind == GOAWAY for kind, *_ in peer.frames())
    assert not peer.transport.closed
    peer.send(peer.start(3))
    assert len(peer.calls) == 1, "a later stream is not taken"
    peer.send(frame(DATA, 0x1, 1, message(b"x")))
    peer.frames()
    assert peer.transport.closed
    assert peer.calls[0].state == "half closed"
