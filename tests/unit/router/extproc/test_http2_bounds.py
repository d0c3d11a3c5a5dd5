"""What a peer may cost: windows, memory, time, and frames that ask for nothing."""

from __future__ import annotations

import struct

import pytest
from support.http2_peer import (
    BEGIN,
    CALM,
    CONTINUATION,
    DATA,
    FLOW_CONTROL_ERROR,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Peer,
    frame,
    goaway,
    message,
)

from plumage_router.extproc.grpc import MAX_MESSAGE

NO_WINDOW = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
PART = b"x" * 60_000
"""Of a message that does not end: gRPC's prefix says that four megabytes come."""


def unfinished(number: int, size: int) -> list[bytes]:
    """DATA frames with the first bytes of a long message."""
    rest = b"\x00" + MAX_MESSAGE.to_bytes(4) + b"x" * (size - 5)
    return [frame(DATA, 0, number, rest[at : at + 60_000]) for at in range(0, size, 60_000)]


def resets(frames: list[tuple[int, int, int, bytes]]) -> dict[int, int]:
    """Codes of RST_STREAM, by stream."""
    return {number: int.from_bytes(payload) for kind, _, number, payload in frames if kind == RST_STREAM}


def status(frames: list[tuple[int, int, int, bytes]], number: int) -> bytes:
    """The gRPC status in the trailers of a stream."""
    (block,) = [payload for kind, flags, stream, payload in frames if (kind, stream) == (HEADERS, number) and flags & 1]
    at = block.index(b"grpc-status") + len(b"grpc-status")
    return block[at + 1 : at + 1 + block[at]]


# -- windows ----------------------------------------------------------------------------------------------------------


def test_data_beyond_a_streams_window_ends_the_stream(peer: Peer) -> None:
    """Without its own window the peer gets no new one, so what it sends is beyond its window at some point."""
    peer.send(NO_WINDOW, peer.start(1), peer.start(3))
    got = [one for _ in range(40) for one in peer.send(frame(DATA, 0, 1, message(b"x" * 60_000)))]
    assert resets(got) == {1: FLOW_CONTROL_ERROR}
    assert [call.state for call in peer.calls] == ["aborted", "open"]
    assert not peer.transport.closed, "other streams go on"
    assert peer.memory.used == 0


def test_data_beyond_the_connections_window_ends_the_connection() -> None:
    """With little memory a whole frame is larger than the smallest window of a connection."""
    peer = Peer(max_buffered_bytes=1 << 17)
    other = Peer(max_buffered_bytes=1 << 15)
    for one in (peer, other):
        one.send(BEGIN, frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)), one.start(1), one.start(3))
    whole = frame(DATA, 0, 3, message(b"x" * 65_531))
    assert goaway(peer.send(whole)) is None
    assert goaway(other.send(whole)) == (3, FLOW_CONTROL_ERROR)
    assert [call.state for call in other.calls] == ["aborted", "aborted"]


@pytest.mark.parametrize("memory", [1 << 10, 1 << 20, 300 << 20, 1 << 40])
def test_window_of_the_connection_follows_the_memory(memory: int) -> None:
    peer = Peer(max_buffered_bytes=memory)
    more = sum(int.from_bytes(payload) for kind, _, number, payload in peer.frames() if kind == WINDOW_UPDATE)
    assert 65_535 + more == max(65_535, min(memory, (1 << 31) - 1))


# -- memory -----------------------------------------------------------------------------------------------------------


def test_unfinished_messages_count_in_the_memory_of_bodies(peer: Peer) -> None:
    peer.send(peer.start(1), *unfinished(1, 200_000))
    assert peer.memory.used == 200_000
    peer.send(frame(RST_STREAM, 0, 1, b"\x00" * 4))
    assert peer.memory.used == 0
    assert len(peer.memory) == 0


def test_message_that_is_complete_counts_no_more(peer: Peer) -> None:
    whole = message(b"x" * 100_000)
    wide = frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4))
    peer.send(
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)), wide, peer.start(1), frame(DATA, 0, 1, whole[:60_000])
    )
    assert peer.memory.used == 60_000
    peer.send(frame(DATA, 0, 1, whole[60_000:] + b"\x00"))
    assert peer.calls[0].got == [b"x" * 100_000]
    assert peer.memory.used == 1, "the next message has begun"
    peer.send(frame(DATA, 0x1, 1, b""))
    assert peer.memory.used == 0


def test_unfinished_messages_are_bounded_over_all_connections() -> None:
    """The largest is refused, of any connection, so that small ones fit."""
    total = 4 << 20
    peer = Peer(max_streams=100, max_buffered_bytes=total, max_body_bytes=1 << 20)
    connections = [peer, *(peer.other() for _ in range(4))]
    for connection in connections:
        connection.send(BEGIN, *(connection.start(number) for number in range(1, 20, 2)))
    for number in range(1, 20, 2):
        for connection in connections:
            connection.send(*unfinished(number, 300_000))
            assert peer.memory.used <= total
    states = [call.state for call in peer.calls]
    assert states.count("crowded") >= 50 - total // 300_000
    assert "open" in states
    for connection in connections:
        connection.connection.connection_lost(None)
    assert peer.memory.used == len(peer.memory) == 0


def test_bytes_that_wait_for_the_peer_count_in_the_memory_of_bodies(peer: Peer) -> None:
    peer.send(NO_WINDOW, peer.start(1))
    peer.send(frame(DATA, 0, 1, message(PART)))
    assert peer.memory.used == len(message(PART))
    peer.send(frame(WINDOW_UPDATE, 0, 1, (1 << 20).to_bytes(4)))
    assert peer.memory.used == 0


def test_bytes_that_wait_are_bounded_over_all_connections() -> None:
    total = 4 << 20
    peer = Peer(max_streams=100, max_buffered_bytes=total, max_body_bytes=1 << 20)
    connections = [peer, *(peer.other() for _ in range(4))]
    for connection in connections:
        connection.send(BEGIN, NO_WINDOW, *(connection.start(number) for number in range(1, 20, 2)))
    ended: list[int] = []
    for _ in range(8):
        for number in range(1, 20, 2):
            for connection in connections:
                got = connection.send(frame(DATA, 0, number, message(PART)))
                ended += [code for code in resets(got).values() if code]
                assert peer.memory.used <= total
    assert set(ended) <= {CALM, STREAM_CLOSED}
    states = [call.state for call in peer.calls]
    assert states.count("aborted") >= 50 - total // (8 * 60_000) - 1
    assert "open" in states
    for connection in connections:
        connection.connection.connection_lost(None)
    assert peer.memory.used == len(peer.memory) == 0


def test_peer_that_does_not_read_its_socket_fills_no_memory(peer: Peer) -> None:
    """However wide its windows are, the transport gets no more while it is full."""
    wide = (1 << 30).to_bytes(4)
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)), frame(WINDOW_UPDATE, 0, 0, wide), peer.start(1))
    peer.transport.full = True
    peer.send(frame(DATA, 0, 1, message(PART)))
    assert peer.transport.reading_paused
    written = len(peer.transport.out)
    for _ in range(10):
        peer.calls[0].call.send(PART)
    peer.frames()
    assert len(peer.transport.out) == written
    assert peer.memory.used == 10 * len(message(PART))
    peer.transport.drain()
    got = peer.frames()
    assert sum(len(payload) for kind, _, _, payload in got if kind == DATA) == 10 * len(message(PART))
    assert max(peer.transport.writes) < 400_000, "a large body is written in parts"
    assert peer.memory.used == 0


def test_open_calls_are_bounded_over_all_connections() -> None:
    peer = Peer(max_streams=8, max_connections=100)
    peer.methods._bounds.limits = peer.methods._bounds.limits.model_copy(update={"max_connections": 10})
    second = peer.other()
    for connection in (peer, second):
        connection.send(BEGIN)
    taken = peer.send(*(peer.start(number) for number in range(1, 16, 2)))
    assert not resets(taken)
    got = second.send(*(second.start(number) for number in range(1, 16, 2)))
    assert resets(got) == dict.fromkeys(range(5, 16, 2), 7)
    peer.send(frame(RST_STREAM, 0, 1, b"\x00" * 4))
    assert not resets(second.send(second.start(17)))
    for connection in (peer, second):
        connection.connection.connection_lost(None)
    assert peer.methods.streams == 0


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE])
def test_connection_that_does_not_begin_is_closed(sent: bytes) -> None:
    peer = Peer()
    peer.send(sent)
    assert goaway(peer.after(9)) is None
    assert goaway(peer.after(2)) == (0, SETTINGS_TIMEOUT)
    assert peer.transport.closed


def test_headers_that_do_not_end_close_the_connection(peer: Peer) -> None:
    peer.send(frame(HEADERS, 0, 1, peer.headers()))
    assert goaway(peer.after(9)) is None
    assert goaway(peer.after(2)) == (0, CALM)


def test_idle_connection_is_closed_after_a_notice(peer: Peer) -> None:
    peer.send(peer.start(1))
    assert goaway(peer.after(100)) is None, "a stream is open"
    peer.send(frame(DATA, 0x1, 1, message(b"x")))
    assert goaway(peer.after(70)) is None
    peer.send(frame(PING, 0, 0, b"12345678"))
    assert goaway(peer.after(6)) == ((1 << 31) - 1, 0), "pings keep no connection"
    assert not peer.transport.closed
    assert goaway(peer.after(2)) == (1, 0)
    assert peer.transport.closed


def test_stream_has_the_deadline_of_its_handler(peer: Peer) -> None:
    peer.send(peer.start(1), peer.start(3))
    peer.calls[0].call.expire_at(peer.methods.tick + 10)
    peer.after(11)
    assert [call.state for call in peer.calls] == ["expired", "open"]
    peer.after(1000)
    assert peer.calls[1].state == "open"


def test_stream_whose_bytes_are_not_taken_is_reset(peer: Peer) -> None:
    peer.send(NO_WINDOW, peer.start(1), frame(DATA, 0, 1, message(PART)))
    assert not resets(peer.after(59))
    peer.send(frame(WINDOW_UPDATE, 0, 1, (1).to_bytes(4)))
    assert not resets(peer.after(59)), "it took one"
    assert resets(peer.after(2)) == {1: 8}
    assert peer.calls[0].state == "aborted"
    assert peer.memory.used == 0


def test_connection_whose_bytes_are_not_taken_is_cut(peer: Peer) -> None:
    peer.connection.pause_writing()
    peer.after(59)
    assert not peer.transport.aborted
    peer.after(2)
    assert peer.transport.aborted


def test_closed_connection_ends_though_its_peer_does_not_close(peer: Peer) -> None:
    peer.send(frame(WINDOW_UPDATE, 0, 0, b"\x00" * 4))
    assert not peer.transport.aborted
    peer.after(2)
    assert peer.transport.aborted


# -- floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(PING, 1, 0, b"12345678"),
        frame(SETTINGS, 0, 0),
        frame(SETTINGS, 1, 0),
        frame(PRIORITY, 0, 1, b"\x00" * 5),
        frame(WINDOW_UPDATE, 0, 0, b"\x00\x00\x00\x01"),
        frame(DATA, 0, 1, b""),
        frame(DATA, 0x8, 1, b"\x03\x00\x00\x00"),
        frame(200, 0, 0, b"?"),
    ],
    ids=["ping", "pong", "settings", "acknowledged", "priority", "window", "empty", "padding", "unknown"],
)
def test_frames_without_content_are_bounded(peer: Peer, flood: bytes) -> None:
    peer.send(peer.start(1))
    got = peer.send(flood * 1_900)
    assert goaway(got) is None
    got += peer.send(flood * 400)
    assert goaway(got) == (1, CALM)
    assert len([one for one in got if one[0] in (PING, SETTINGS)]) <= 2_001
    assert peer.calls[0].state == "aborted"


def test_rare_frames_without_content_are_no_flood(peer: Peer) -> None:
    peer.send(peer.start(1))
    for _ in range(10):
        assert goaway(peer.send(frame(PING, 0, 0, b"12345678") * 1_500)) is None
        peer.after(11)


def test_window_updates_for_what_was_sent_are_no_flood(peer: Peer) -> None:
    peer.send(peer.start(1))
    more = frame(WINDOW_UPDATE, 0, 0, (8).to_bytes(4)) + frame(WINDOW_UPDATE, 0, 1, (8).to_bytes(4))
    for _ in range(5_000):
        assert goaway(peer.send(frame(DATA, 0, 1, message(b"abc")), more)) is None


def test_streams_that_are_reset_at_once_are_bounded(peer: Peer) -> None:
    """CVE-2023-44487: they never reach the bound of open streams."""
    got, number = [], 1
    while not peer.transport.closed and number < 10_000:
        got += peer.send(frame(HEADERS, 0x4, number, peer.headers()), frame(RST_STREAM, 0, number, b"\x00\x00\x00\x08"))
        number += 2
    assert goaway(got) == (number - 2, CALM)
    assert number // 2 == 1_001


def test_streams_that_are_reset_after_an_answer_or_a_while_are_no_flood(peer: Peer) -> None:
    cancel = b"\x00\x00\x00\x08"
    for number in range(1, 4_000, 4):
        got = peer.send(peer.start(number), frame(DATA, 0, number, message(b"x")), peer.start(number + 2))
        got += peer.send(frame(RST_STREAM, 0, number, cancel))
        peer.methods.tick += 1.5
        got += peer.send(frame(RST_STREAM, 0, number + 2, cancel))
        assert goaway(got) is None
    assert len(peer.calls) == 2_000


def test_streams_that_the_peer_makes_us_reset_are_bounded(peer: Peer) -> None:
    """CVE-2025-8671."""
    got, number = [], 1
    while not peer.transport.closed and number < 10_000:
        got += peer.send(peer.start(number), frame(WINDOW_UPDATE, 0, number, b"\x00" * 4))
        number += 2
    assert goaway(got) == (number - 2, CALM)
    assert number // 2 == 1_001


@pytest.mark.parametrize("size", [0, 10, 4_000])
def test_continued_headers_are_bounded(peer: Peer, size: int) -> None:
    """CVE-2024-27316, also of empty frames."""
    got = peer.send(frame(HEADERS, 0, 1, b""), *[frame(CONTINUATION, 0, 1, b"\x00" * size)] * 40)
    assert goaway(got) == (0, CALM)


def test_refused_streams_are_bounded(peer: Peer) -> None:
    peer.send(*(peer.start(number) for number in range(1, 16, 2)))
    got, number = [], 17
    while not peer.transport.closed and number < 10_000:
        got += peer.send(peer.start(number))
        number += 2
    assert goaway(got) == (15, CALM)
    assert len(peer.calls) == 8


def test_frames_of_a_stream_that_the_peer_ended_end_the_connection(peer: Peer) -> None:
    peer.send(peer.start(1), frame(DATA, 0x1, 1, message(b"x")))
    assert goaway(peer.send(frame(DATA, 0, 1, message(b"x")))) == (1, STREAM_CLOSED)


def test_frames_of_a_stream_that_we_ended_are_dropped(peer: Peer) -> None:
    """They were on their way."""
    got = peer.send(peer.start(1, path=b"/none"))
    assert status(got, 1) == b"12"
    assert peer.send(frame(DATA, 0, 1, message(b"x")), frame(DATA, 0x1, 1, b"x")) == []
    trailers = bytes(peer.encoder.encode([(b"x-end", b"1")]))
    assert peer.send(frame(HEADERS, 0x5, 1, trailers)) == []


def test_many_clients_that_leave_at_once_are_no_flood() -> None:
    """A proxy resets the streams of its clients. Those that waited for a while were not answered yet."""
    peer = Peer(max_streams=10_000)
    peer.send(BEGIN, *(peer.start(number) for number in range(1, 10_000, 2)))
    peer.methods.tick += 2
    got = peer.send(*(frame(RST_STREAM, 0, number, b"\x00\x00\x00\x08") for number in range(1, 10_000, 2)))
    assert goaway(got) is None
    assert {call.state for call in peer.calls} == {"aborted"}
    got = peer.send(*[frame(RST_STREAM, 0, 1, b"\x00\x00\x00\x08")] * 4_100)
    assert goaway(got) == (9_999, CALM), "of no open stream"


def test_malformed_requests_are_bounded(peer: Peer) -> None:
    block = bytes(peer.encoder.encode([(b":method", b"POST")]))
    got = peer.send(*(frame(HEADERS, 0x4, number, block) for number in range(1, 4_100, 2)))
    assert goaway(got) == (0, CALM)
