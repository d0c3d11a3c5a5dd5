"""Frames of HTTP/2: what a peer may do wrong, windows, and streams that end in each way."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.http2_peer import (
    BEGIN,
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PATH,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    Transport,
    frame,
    goaway,
    message,
)

from plumage_router.extproc.grpc import MAX_MESSAGE
from plumage_router.extproc.http2 import Http2Connection


@pytest.mark.parametrize("whole", [True, False])
def test_call_is_answered_however_its_bytes_arrive(whole: bool) -> None:
    peer = Peer()
    got = peer.send(
        BEGIN, peer.start(), frame(DATA, 0, 1, message(b"one") + message(b"two")[:4]),
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
    other.send(BEGIN)
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
        (BEGIN + frame(DATA, 0, 0, b"x"), 1),
        (BEGIN + frame(DATA, 0, 1, b"x"), 1),
        (BEGIN + frame(HEADERS, 0x4, 2, b""), 1),
        (BEGIN + frame(CONTINUATION, 0x4, 1, b""), 1),
        (BEGIN + frame(PUSH, 0, 1, b""), 1),
        (BEGIN + frame(PING, 0, 0, b"short"), 6),
        (BEGIN + frame(SETTINGS, 0, 0, b"short"), 6),
        (BEGIN + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), 3),
        (BEGIN + frame(WINDOW_UPDATE, 0, 0, b"\x00\x00\x00\x00"), 1),
        (BEGIN + frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), 3),
        (BEGIN + frame(HEADERS, 0x4, 1, b"\xff\xff\xff\xff\xff"), 9),
        (BEGIN + (65_537).to_bytes(3) + b"\x00\x00\x00\x00\x00\x01", 6),
        (BEGIN + frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, b"8" * 8), 1),
        (BEGIN + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"x" * 40_000) * 2, 11),
        (BEGIN + frame(RST_STREAM, 0, 1, b"\x00" * 4), 1),
    ],
)  # fmt: skip
def test_peer_that_breaks_the_rules_gets_the_reason(frames: bytes, code: int) -> None:
    peer = Peer()
    got = peer.send(frames)
    assert got[-1][0] == GOAWAY
    assert goaway(got) == (0, code)
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
    piece, credit = frame(DATA, 0, 1, message(b"x" * 65_000)), 1 << 20
    while credit >= 65_005:
        credit += sum(int.from_bytes(payload) for kind, _, number, payload in peer.send(piece)
                      if kind == WINDOW_UPDATE and number == 1) - 65_005  # fmt: skip
    got = peer.send(frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4)),
                    frame(WINDOW_UPDATE, 0, 1, (1 << 30).to_bytes(4)))  # fmt: skip
    assert any(kind == WINDOW_UPDATE and number == 1 for kind, _, number, _ in got)
    assert peer.calls[0].state == "open"
    assert peer.memory.used == 0


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
    got = peer.send(BEGIN, peer.start(1), peer.start(3), peer.start(5))
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
    block = bytes(peer.encoder.encode([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]))
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


REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH), (b"content-type", b"application/grpc")]


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        [REQUEST[0], *REQUEST[2:]],
        [*REQUEST[:2], *REQUEST[3:]],
        [*REQUEST[:2], (b":path", b""), *REQUEST[3:]],
        [*REQUEST[:1], *REQUEST],
        [*REQUEST, (b":authority", b"late")],
        [(b":status", b"200"), *REQUEST],
        [*REQUEST, (b"Upper", b"x")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"te", b"gzip")],
        [*REQUEST, (b"x", b"a\r\nb: c")],
        [*REQUEST, (b"content-length", b"none")],
    ],
)
def test_malformed_request_ends_its_stream(peer: Peer, fields: list[tuple[bytes, bytes]]) -> None:
    got = peer.send(frame(HEADERS, 0x4, 1, bytes(peer.encoder.encode(fields))), peer.start(3))
    assert got == [(RST_STREAM, 0, 1, (1).to_bytes(4))]
    assert len(peer.calls) == 1, "the next one is served"


@pytest.mark.parametrize(("length", "kept"), [(b"6", True), (b"5", False), (b"7", False)])
def test_content_has_the_length_that_was_said(peer: Peer, length: bytes, kept: bool) -> None:
    block = bytes(peer.encoder.encode([*REQUEST, (b"content-length", length)]))
    got = peer.send(frame(HEADERS, 0x4, 1, block), frame(DATA, 0x1, 1, message(b"x")))
    assert ((RST_STREAM, 0, 1, (1).to_bytes(4)) in got) is not kept
    assert [call.state for call in peer.calls] == ["half closed" if kept else "aborted"]


@pytest.mark.parametrize("fields", [[(b"x-end", b"1")], [(b":path", b"/")]])
def test_trailers_have_no_pseudo_headers(peer: Peer, fields: list[tuple[bytes, bytes]]) -> None:
    got = peer.send(peer.start(1), frame(HEADERS, 0x5, 1, bytes(peer.encoder.encode(fields))))
    malformed = fields[0][0].startswith(b":")
    assert ((RST_STREAM, 0, 1, (1).to_bytes(4)) in got) is malformed
    assert peer.calls[0].state == ("aborted" if malformed else "half closed")


def test_changed_settings_are_acknowledged_before_they_have_an_effect(peer: Peer) -> None:
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)), peer.start(1), frame(DATA, 0, 1, message(b"x")))
    got = peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 3)))
    assert [one[:2] for one in got] == [(SETTINGS, 1), (DATA, 0)]


def test_first_frame_is_settings() -> None:
    peer = Peer()
    assert goaway(peer.send(PREFACE, frame(PING, 0, 0, b"12345678"))) == (0, 1)


def test_leaving_peer_is_asked_twice(peer: Peer) -> None:
    """RFC 9113 §6.8: what is on its way after the first GOAWAY is still served."""
    peer.send(peer.start(1))
    peer.connection.leave()
    got = peer.frames()
    assert goaway(got) == ((1 << 31) - 1, 0)
    (ping,) = [payload for kind, _, _, payload in got if kind == PING]
    assert not peer.connection.noticed
    peer.send(peer.start(3))
    assert len(peer.calls) == 2
    assert goaway(peer.send(frame(PING, 1, 0, b"another.."[:8]))) is None
    assert goaway(peer.send(frame(PING, 1, 0, ping))) == (3, 0)
    assert peer.connection.noticed
    assert peer.send(peer.start(5)) == [(RST_STREAM, 0, 5, (7).to_bytes(4))]
    peer.send(frame(DATA, 0x1, 1, message(b"x")))
    assert not peer.transport.closed
    peer.send(frame(DATA, 0x1, 3, message(b"y")))
    assert peer.transport.closed
    assert [call.got for call in peer.calls] == [[b"x"], [b"y"]]


def test_peer_that_does_not_answer_is_asked_again(peer: Peer) -> None:
    peer.send(peer.start(1))
    peer.connection.leave()
    peer.frames()
    assert goaway(peer.after(0.5)) is None
    assert goaway(peer.after(0.6)) == (1, 0)
    assert not peer.transport.closed
