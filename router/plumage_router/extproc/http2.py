"""The server's side of HTTP/2 without TLS, as far as gRPC needs it (RFC 9113).

A Python gRPC library costs more CPU time than a whole decision
(docs/decisions/0310-serve-the-picker-by-an-http2-of-its-own.md), so frames are read here. Compressed headers are read
by `hpack`. The settings ask the peer to keep no table of headers, so equal requests have equal bytes, and
these are read once.

Bounds: open streams, bytes of a frame, of headers and of streams' windows. A peer that does not read what it is sent is
not read from either.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, Protocol, cast

from hpack import Decoder, HPACKError

__all__ = ["Http2Connection", "Http2Host", "Http2Stream", "StreamHandler", "literal"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
_NO_ERROR, _PROTOCOL_ERROR, _FLOW_CONTROL_ERROR, _FRAME_SIZE_ERROR = 0x0, 0x1, 0x3, 0x6
_REFUSED_STREAM, _CANCEL, _COMPRESSION_ERROR, _CALM = 0x7, 0x8, 0x9, 0xB
_STREAM_CLOSED: Final = 0x5

_MAX_FRAME: Final = 65_536  # bytes of a frame that we take
_STREAM_WINDOW: Final = 1 << 20  # bytes that a peer may send on a stream before we let it send more
_CONNECTION_WINDOW: Final = 64 << 20
_MAX_HEADERS: Final = 65_536  # bytes of compressed headers
_MAX_KEPT: Final = 256  # header blocks that are read once
_MAX_KEPT_BLOCK: Final = 2048  # bytes
_MAX_QUEUED: Final = 1 << 20  # bytes that wait for a stream's window, before the stream is not read from
_FIRST_WINDOW: Final = 65_535  # RFC 9113 §6.9.2
_MOST_WINDOW: Final = (1 << 31) - 1
_FRAME: Final = struct.Struct(">HBBBI")  # length (high 16 bits, low 8), type, flags, stream
_NUMBER: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")
_TABLE_SIZE, _MAX_STREAMS, _INITIAL_WINDOW, _FRAME_SIZE, _HEADER_LIST = 0x1, 0x3, 0x4, 0x5, 0x6


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is in no table (RFC 7541 §6.2.2). Both are shorter than 127 bytes."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


class StreamHandler(Protocol):
    """Answers one stream. Ends with `Http2Stream.end` or `reset`, or by `aborted`."""

    def received(self, data: bytes) -> None: ...

    def half_closed(self) -> None:
        """The peer sends no more."""
        ...

    def aborted(self) -> None:
        """The stream is gone: nothing can be sent."""
        ...


class Http2Host(Protocol):
    """What connections share. `max_streams`: of a connection."""

    max_streams: int

    def opened(self, connection: Http2Connection) -> bool:
        """Returns False when too many are open."""
        ...

    def closed(self, connection: Http2Connection) -> None: ...

    def handler(self, headers: dict[bytes, bytes], stream: Http2Stream) -> StreamHandler | None:
        """None if the stream was answered at once."""
        ...


class Http2Stream:
    """One stream. `open`: something may be sent."""

    __slots__ = ("_blocked", "_connection", "_ending", "_head", "_unread", "handler", "number", "open", "window")

    def __init__(self, connection: Http2Connection, number: int, window: int) -> None:
        self._connection = connection
        self._blocked = bytearray()  # waits for a window
        self._ending: bytes | None = None  # trailers that follow what waits
        self._head: bytes | None = None
        self._unread = 0  # bytes received for which the peer got no new window
        self.handler: StreamHandler | None = None
        self.number = number
        self.open = True
        self.window = window

    def head(self, block: bytes) -> None:
        """Sets the headers, a block of `literal`s; they are sent before the first data."""
        self._head = block

    def send(self, data: bytes) -> None:
        if not self.open:
            return
        self._send_head()
        if self._blocked:
            self._blocked += data
        else:
            sent = self._connection.send_data(self, data)
            if sent < len(data):
                self._blocked += memoryview(data)[sent:]

    def end(self, trailers: bytes) -> None:
        """Ends the stream with trailers, a block of `literal`s, after what was sent."""
        if self.open and self._ending is None:
            self._send_head()
            self._ending = trailers
            self._finish()

    def reset(self) -> None:
        """Ends the stream at once, as an error."""
        if self.open:
            self._connection.reset_stream(self, _CANCEL)

    @property
    def queued(self) -> int:
        """Bytes that wait for the peer."""
        return len(self._blocked)

    # -- for the connection -------------------------------------------------------------------------------------------

    def unblock(self) -> None:
        """A window grew."""
        if self._blocked:
            sent = self._connection.send_data(self, self._blocked)
            del self._blocked[:sent]
            if self._blocked:
                return
        self._finish()
        if self.open and self._unread:
            self.consume(0)

    def consume(self, size: int) -> None:
        """Bytes came. The peer may send as many again, unless it does not read what it gets."""
        self._unread += size
        if self._unread >= _STREAM_WINDOW // 2 and len(self._blocked) < _MAX_QUEUED:
            self._connection.write(_frame(_WINDOW_UPDATE, 0, self.number, _NUMBER.pack(self._unread)))
            self._unread = 0

    def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._connection.write(_frame(_HEADERS, _END_HEADERS, self.number, head))

    def _finish(self) -> None:
        if self._ending is not None and not self._blocked and self.open:
            self._connection.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, self.number, self._ending))
            self._connection.finish_stream(self)


class _PeerError(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Http2Connection(asyncio.Protocol):
    """One connection of a proxy. `streams`: the open ones, by number."""

    __slots__ = (
        "_block",
        "_blocked",
        "_closing",
        "_decoder",
        "_header_flags",
        "_header_stream",
        "_host",
        "_initial_window",
        "_kept",
        "_last",
        "_leaving",
        "_loop",
        "_max_frame",
        "_out",
        "_peer_ended",
        "_preface",
        "_receiving",
        "_rest",
        "_scheduled",
        "_unread",
        "_window",
        "streams",
        "transport",
    )

    def __init__(self, host: Http2Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._decoder = Decoder(max_header_list_size=_MAX_HEADERS)
        self._kept: dict[bytes, dict[bytes, bytes]] = {}
        self._rest = b""
        self._preface = False  # it was read
        self._block = bytearray()  # of headers that are not complete
        self._header_stream = self._header_flags = 0
        self._last = 0  # the peer's newest stream
        self._initial_window = _FIRST_WINDOW
        self._max_frame = 16_384
        self._window = _FIRST_WINDOW  # of the whole connection, for what we send
        self._unread = 0
        self._blocked: dict[int, Http2Stream] = {}  # streams that wait for a window, the longest first
        self._out: list[bytes] = []
        self._receiving = self._scheduled = self._closing = self._leaving = False
        self._peer_ended: set[int] = set()  # open streams whose peer sends no more
        self.streams: dict[int, Http2Stream] = {}
        self.transport = cast(asyncio.Transport, None)

    # -- callbacks of the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._host.opened(self):
            self._closing = True
            self.transport.abort()
            return
        settings = {
            _TABLE_SIZE: 0,
            _MAX_STREAMS: self._host.max_streams,
            _INITIAL_WINDOW: _STREAM_WINDOW,
            _FRAME_SIZE: _MAX_FRAME,
            _HEADER_LIST: _MAX_HEADERS,
        }
        self.write(_frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings.items())))
        self.write(_frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_CONNECTION_WINDOW - _FIRST_WINDOW)))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._receiving = True
        try:
            self._rest = self._read(self._rest + data if self._rest else data)
        except _PeerError as error:
            self._give_up(error.code)
        finally:
            self._receiving = False
            self._flush()

    def connection_lost(self, error: BaseException | None) -> None:
        self._closing = True
        self._out.clear()
        streams, self.streams = self.streams, {}
        self._blocked.clear()
        for stream in streams.values():
            stream.open = False
            if stream.handler is not None:
                stream.handler.aborted()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # -- for the port -------------------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Takes no further stream. The connection closes when the last one ends."""
        if not self._closing:
            payload = _NUMBER.pack(self._last) + _NUMBER.pack(_NO_ERROR)
            self.write(_frame(_GOAWAY, 0, 0, payload))
            self._leaving = True
            self._close_when_idle()

    # -- for the streams ----------------------------------------------------------------------------------------------

    def write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def send_data(self, stream: Http2Stream, data: bytes | bytearray) -> int:
        """Sends as many bytes as the windows allow, and returns their number. Calls `unblock` when they grow."""
        total, at = len(data), 0
        while at < total:
            size = min(total - at, self._max_frame, stream.window, self._window)
            if size <= 0:
                self._blocked[stream.number] = stream
                break
            payload = bytes(data) if size == total else bytes(data[at : at + size])
            self._out.append(_FRAME.pack(size >> 8, size & 0xFF, _DATA, 0, stream.number))
            self.write(payload)
            stream.window -= size
            self._window -= size
            at += size
        return at

    def finish_stream(self, stream: Http2Stream) -> None:
        """Its last frame was written. A peer that still sends is asked to stop (RFC 9113 §8.1)."""
        stream.open = False
        if stream.number not in self._peer_ended:
            self.write(_frame(_RST_STREAM, 0, stream.number, _NUMBER.pack(_NO_ERROR)))
        self._forget(stream)

    def reset_stream(self, stream: Http2Stream, code: int) -> None:
        stream.open = False
        self.write(_frame(_RST_STREAM, 0, stream.number, _NUMBER.pack(code)))
        self._forget(stream)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._scheduled = False
        if self._out and not self.transport.is_closing():
            out, self._out = self._out, []
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _forget(self, stream: Http2Stream) -> None:
        self.streams.pop(stream.number, None)
        self._blocked.pop(stream.number, None)
        self._peer_ended.discard(stream.number)
        if self._leaving:
            self._loop.call_soon(self._close_when_idle)

    def _close_when_idle(self) -> None:
        if not self.streams and not self._closing:
            self._flush()
            self._closing = True
            self.transport.close()

    def _give_up(self, code: int) -> None:
        """Reports to the peer what it did wrong, and closes."""
        self._closing = True
        self.write(_frame(_GOAWAY, 0, 0, _NUMBER.pack(self._last) + _NUMBER.pack(code)))
        self._flush()
        self.transport.close()

    def _read(self, data: bytes) -> bytes:
        """Reads whole frames. Returns the rest."""
        at, size = 0, len(data)
        if not self._preface:
            if size < len(_PREFACE):
                if not _PREFACE.startswith(data):
                    raise _PeerError(_PROTOCOL_ERROR)
                return data
            if not data.startswith(_PREFACE):
                raise _PeerError(_PROTOCOL_ERROR)
            self._preface, at = True, len(_PREFACE)
        while size - at >= 9:
            high, low, kind, flags, number = _FRAME.unpack_from(data, at)
            length = high << 8 | low
            if length > _MAX_FRAME:
                raise _PeerError(_FRAME_SIZE_ERROR)
            end = at + 9 + length
            if end > size:
                break
            self._take(kind, flags, number & 0x7FFFFFFF, data[at + 9 : end])
            at = end
            if self._closing:
                return b""
        return data[at:]

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """One frame."""
        if self._header_stream and (kind != _CONTINUATION or number != self._header_stream):
            raise _PeerError(_PROTOCOL_ERROR)
        if kind == _DATA:
            self._data(flags, number, payload)
        elif kind == _HEADERS:
            self._headers(flags, number, payload)
        elif kind == _CONTINUATION:
            self._continuation(flags, number, payload)
        elif kind == _WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == _RST_STREAM:
            self._peer_reset(number, payload)
        elif kind == _SETTINGS:
            self._settings(flags, number, payload)
        elif kind == _PING:
            if len(payload) != 8:
                raise _PeerError(_FRAME_SIZE_ERROR)
            if not flags & _ACK:
                self.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _PUSH:
            raise _PeerError(_PROTOCOL_ERROR)
        # PRIORITY, GOAWAY and unknown kinds say nothing that a server needs

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0 or number > self._last:
            raise _PeerError(_PROTOCOL_ERROR)
        size = len(payload)
        self._unread += size
        if self._unread >= _CONNECTION_WINDOW // 2:
            self.write(_frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._unread)))
            self._unread = 0
        stream = self.streams.get(number)
        if stream is None:
            return  # it ended while this was on its way
        if number in self._peer_ended:
            self._abort(stream, _STREAM_CLOSED)
            return
        stream.consume(size)
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _END_STREAM:
            self._peer_ended.add(number)
        if payload and stream.handler is not None:
            stream.handler.received(payload)
        if flags & _END_STREAM:
            self._peer_ends(stream)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if number % 2 == 0:
            raise _PeerError(_PROTOCOL_ERROR)
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _PRIORITIZED:
            payload = payload[5:]
        if flags & _END_HEADERS:
            self._block_complete(flags, number, payload)
        else:
            self._header_stream, self._header_flags = number, flags
            self._block = bytearray(payload)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if not self._header_stream:
            raise _PeerError(_PROTOCOL_ERROR)
        self._block += payload
        if len(self._block) > _MAX_HEADERS:
            raise _PeerError(_CALM)
        if flags & _END_HEADERS:
            block, began = bytes(self._block), self._header_flags
            self._header_stream, self._block = 0, bytearray()
            self._block_complete(began, number, block)

    def _block_complete(self, flags: int, number: int, block: bytes) -> None:
        headers = self._decoded(block)
        stream = self.streams.get(number)
        if stream is not None:  # trailers
            if not flags & _END_STREAM:
                raise _PeerError(_PROTOCOL_ERROR)
            self._peer_ends(stream)
            return
        if number <= self._last:
            return  # trailers of a stream that ended meanwhile
        self._last = number
        if self._leaving:
            return  # GOAWAY said that this stream is not taken
        if len(self.streams) >= self._host.max_streams:
            self.write(_frame(_RST_STREAM, 0, number, _NUMBER.pack(_REFUSED_STREAM)))
            return
        stream = self.streams[number] = Http2Stream(self, number, self._initial_window)
        if flags & _END_STREAM:
            self._peer_ended.add(number)
        handler = stream.handler = self._host.handler(headers, stream)
        if handler is not None and flags & _END_STREAM:
            handler.half_closed()

    def _decoded(self, block: bytes) -> dict[bytes, bytes]:
        """The headers, of repeated ones the last."""
        headers = self._kept.get(block)
        if headers is not None:
            return headers
        try:
            decoded = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise _PeerError(_COMPRESSION_ERROR) from error
        headers = {bytes(field[0]): bytes(field[1]) for field in decoded}
        # While the table is empty a block has the same meaning each time.
        if len(block) > _MAX_KEPT_BLOCK:
            return headers
        if not self._decoder.header_table.dynamic_entries and len(self._kept) < _MAX_KEPT:
            self._kept[block] = headers
        else:
            self._kept.clear()
        return headers

    def _peer_ends(self, stream: Http2Stream) -> None:
        if stream.open and stream.handler is not None:
            self._peer_ended.add(stream.number)
            stream.handler.half_closed()

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _PeerError(_FRAME_SIZE_ERROR)
        more = _NUMBER.unpack(payload)[0] & _MOST_WINDOW
        if number == 0:
            if more == 0:
                raise _PeerError(_PROTOCOL_ERROR)
            self._window += more
            if self._window > _MOST_WINDOW:
                raise _PeerError(_FLOW_CONTROL_ERROR)
            self._unblock(tuple(self._blocked.values()))
            return
        stream = self.streams.get(number)
        if stream is None:
            return
        stream.window += more
        if more == 0 or stream.window > _MOST_WINDOW:
            self._abort(stream, _FLOW_CONTROL_ERROR if more else _PROTOCOL_ERROR)
        elif number in self._blocked:
            self._unblock((stream,))

    def _unblock(self, streams: tuple[Http2Stream, ...]) -> None:
        for stream in streams:
            if self._window <= 0:
                break  # the others stay blocked
            self._blocked.pop(stream.number, None)
            stream.unblock()

    def _peer_reset(self, number: int, payload: bytes) -> None:
        if number == 0 or number > self._last:
            raise _PeerError(_PROTOCOL_ERROR)
        if len(payload) != 4:
            raise _PeerError(_FRAME_SIZE_ERROR)
        stream = self.streams.get(number)
        if stream is not None:
            stream.open = False
            self._forget(stream)
            if stream.handler is not None:
                stream.handler.aborted()

    def _abort(self, stream: Http2Stream, code: int) -> None:
        self.reset_stream(stream, code)
        if stream.handler is not None:
            stream.handler.aborted()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise _PeerError(_PROTOCOL_ERROR)
        if flags & _ACK:
            return
        if len(payload) % 6:
            raise _PeerError(_FRAME_SIZE_ERROR)
        for name, value in dict(_SETTING.iter_unpack(payload)).items():  # the last value of each counts
            if name == _INITIAL_WINDOW:
                if value > _MOST_WINDOW:
                    raise _PeerError(_FLOW_CONTROL_ERROR)
                change, self._initial_window = value - self._initial_window, value
                for stream in self.streams.values():
                    stream.window += change
                if change > 0:
                    self._unblock(tuple(self._blocked.values()))
            elif name == _FRAME_SIZE:
                if not 16_384 <= value <= 16_777_215:
                    raise _PeerError(_PROTOCOL_ERROR)
                self._max_frame = min(value, _MAX_FRAME)
        self.write(_frame(_SETTINGS, _ACK, 0))


def _unpadded(payload: bytes) -> bytes:
    """A DATA or HEADERS payload without its padding."""
    if not payload or payload[0] >= len(payload):
        raise _PeerError(_PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
