"""The server's side of an HTTP/2 connection, as far as gRPC needs it (RFC 9113).

A Python gRPC library costs more CPU time than a whole decision
(docs/decisions/0310-serve-the-picker-by-an-http2-of-its-own.md), so frames are read here.

Bounds: open streams, bytes of a frame, of headers and of windows, frames without content, time. Bytes that wait for a
peer count in the memory of request bodies. A peer that does not read what it is sent is not read from either.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol, cast

from plumage.settings.router_config import TimeoutsConfig
from plumage_router.extproc import frames
from plumage_router.extproc.frames import FRAME, MOST_WINDOW, NUMBER, PREFACE, SETTING, PeerError, frame, unpadded
from plumage_router.extproc.header_blocks import MAX_HEADERS, BlockKind, HeaderBlocks
from plumage_router.extproc.http2_stream import STREAM_WINDOW, Http2Stream, StreamHandler
from plumage_router.extproc.peer_budget import PeerBudget
from plumage_router.http.body_memory import BodyMemory
from plumage_router.http.downstream import LINGER, peer_address

__all__ = ["Http2Connection", "Http2Host"]

_MAX_FRAME: Final = 65_536  # bytes of a frame that we take
_AT_ONCE: Final = 1 << 18  # bytes of data that are written in one turn of the loop
_HIGH_WATER: Final = 65_536  # bytes that wait for a slow peer in the transport; loops have more over TLS
_MOST_CUT: Final = 1024
_YOUNG: Final = 1.0  # seconds: a stream that its peer drops before counts, unless it was answered
_NOTICE: Final = b"leaving."  # the PING after the first GOAWAY
_NOTICE_SECONDS: Final = 1.0  # the longest wait for its answer


class Http2Host(Protocol):
    """What connections share.

    max_streams: of a connection. memory: for bytes that wait. timeouts: `header` for the first settings and for a block
    of headers, `keep_alive` without a stream, `write` for a peer that does not read. tick: a coarse clock in seconds.
    window: bytes that a peer may send on a connection before it is let send more.
    """

    memory: BodyMemory
    tick: float

    @property
    def max_streams(self) -> int: ...

    @property
    def timeouts(self) -> TimeoutsConfig: ...

    @property
    def window(self) -> int: ...

    def opened(self, connection: Http2Connection) -> bool:
        """Returns False when too many are open."""
        ...

    def closed(self, connection: Http2Connection) -> None: ...

    def stream_opened(self) -> bool:
        """Returns False when too many are open, of all connections."""
        ...

    def stream_closed(self) -> None: ...

    def handler(self, headers: dict[bytes, bytes], stream: Http2Stream) -> StreamHandler | None:
        """None if the stream was answered at once."""
        ...


class Http2Connection(asyncio.Protocol):
    """One connection of a proxy. The port calls `sweep` with each tick.

    `streams`: the open ones, by number. `established`: over TLS the handshake has ended. `peer`: the proxy's address.
    `noticed`: the peer knows that it should open no further stream, or had time to learn it.
    """

    __slots__ = (
        "_blocked", "_budget", "_closing", "_credit", "_cut", "_cut_before", "_final_by", "_headers_by", "_host",
        "_idle_since", "_initial_window", "_last", "_leaving", "_loop", "_max_frame", "_noticing", "_out", "_paused",
        "_peer_ended", "_preface", "_receiving", "_rest", "_room", "_scheduled", "_settings_by", "_settled", "_taken",
        "_unread", "_whole_window", "_window", "_write_by", "blocks", "established", "memory", "peer", "streams",
        "transport",
    )  # fmt: skip

    def __init__(self, host: Http2Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._budget = PeerBudget(host.tick)
        self._rest = b""
        self._preface = False  # it was read
        self._last = 0  # the peer's newest stream
        self._taken = 0  # the newest one that was not refused
        self._initial_window = frames.FIRST_WINDOW
        self._max_frame = frames.FIRST_FRAME
        self._window = frames.FIRST_WINDOW  # of the whole connection, for what we send
        self._whole_window = max(frames.FIRST_WINDOW, min(host.window, MOST_WINDOW))
        self._credit = self._whole_window  # what the peer may send
        self._unread = 0
        self._room = _AT_ONCE  # bytes that may be written in this turn; 0 while the transport is full
        self._blocked: dict[int, Http2Stream] = {}  # streams that wait for a window, the longest first
        self._out: list[bytes] = []
        self._receiving = self._scheduled = self._paused = False
        self._closing = False  # nothing is read any more
        self._noticing = self._leaving = False  # the first, and the final GOAWAY was sent
        self._peer_ended: set[int] = set()  # open streams whose peer sends no more
        self._cut: dict[int, None] = {}  # streams that we ended first: frames of them may be on their way
        self._cut_before = 0  # streams up to this one may have been reset too: the oldest are no longer listed
        self._settled = False  # the peer's first settings came
        self._settings_by = self._headers_by = self._write_by = self._final_by = math.inf  # deadlines
        self._idle_since = math.inf
        self.blocks = HeaderBlocks()
        self.memory = host.memory
        self.streams: dict[int, Http2Stream] = {}
        self.established = False
        self.peer = ""
        self.transport = cast(asyncio.Transport, None)

    # -- callbacks of the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established = True
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.peer = peer_address(transport.get_extra_info("peername"))
        if not self._host.opened(self):
            self._closing = True
            self.transport.abort()
            return
        self._settings_by = self._host.tick + self._host.timeouts.header
        settings = {
            frames.TABLE_SIZE: 0,
            frames.MAX_STREAMS: self._host.max_streams,
            frames.INITIAL_WINDOW: STREAM_WINDOW,
            frames.FRAME_SIZE: _MAX_FRAME,
            frames.HEADER_LIST: MAX_HEADERS,
        }
        self.write(frame(frames.SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings.items())))
        if self._whole_window > frames.FIRST_WINDOW:
            more = NUMBER.pack(self._whole_window - frames.FIRST_WINDOW)
            self.write(frame(frames.WINDOW_UPDATE, 0, 0, more))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._receiving = True
        try:
            self._rest = self._read(self._rest + data if self._rest else data)
        except PeerError as error:
            self._give_up(error.code)
        finally:
            self._receiving = False
            self._flush()

    def connection_lost(self, error: BaseException | None) -> None:
        self._closing = True
        self._write_by = math.inf
        self._out.clear()
        self._end_streams()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._paused = True
        self._room = 0
        self._write_by = self.write_deadline()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._room = _AT_ONCE
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        if not self._closing:
            self._write_by = math.inf
            self._continue()

    # -- for the port -------------------------------------------------------------------------------------------------

    @property
    def noticed(self) -> bool:
        return self._leaving or self._closing

    def leave(self) -> None:
        """Asks the peer to open its further streams elsewhere. Those on their way are still taken (RFC 9113 §6.8)."""
        if self._closing or self._noticing:
            return
        if not self._settled:  # nothing is on its way
            self.go_away()
            return
        self._noticing = True
        self._final_by = self._host.tick + _NOTICE_SECONDS
        self.write(frame(frames.GOAWAY, 0, 0, NUMBER.pack(MOST_WINDOW) + NUMBER.pack(frames.NO_ERROR)))
        self.write(frame(frames.PING, 0, 0, _NOTICE))

    def go_away(self) -> None:
        """Takes no further stream. The connection closes when the last one ends."""
        if self._closing or self._leaving:
            return
        self._noticing = self._leaving = True
        self._final_by = math.inf
        self.write(frame(frames.GOAWAY, 0, 0, NUMBER.pack(self._taken) + NUMBER.pack(frames.NO_ERROR)))
        self._close_when_idle()

    def sweep(self, now: float) -> None:
        """Ends what took too long."""
        if now > self._write_by:
            self.transport.abort()
            return
        if self._closing:
            return
        if now > self._settings_by:
            self._give_up(frames.SETTINGS_TIMEOUT)
        elif now > self._headers_by:
            self._give_up(frames.ENHANCE_YOUR_CALM)
        elif now > self._final_by:
            self.go_away()
        elif not self.streams and now > self._idle_since + self._host.timeouts.keep_alive:
            self.leave()
        late = [stream for stream in self.streams.values() if stream.deadline < now or stream.stuck_by < now]
        for stream in late:
            self._late(stream, now)

    # -- for the streams ----------------------------------------------------------------------------------------------

    def write_deadline(self) -> float:
        """When a peer that takes nothing from now on is given up."""
        return self._host.tick + self._host.timeouts.write

    def write(self, data: bytes) -> None:
        """Writes a frame, or a part of one."""
        self._out.append(data)
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def send_data(self, stream: Http2Stream, data: bytes | bytearray) -> int:
        """Sends as many bytes as the windows and the transport allow, and returns their number. Calls `unblock` when
        they allow more."""
        total, at = len(data), 0
        while at < total:
            size = min(total - at, self._max_frame, stream.window, self._window)
            if size <= 0 or self._room <= 0:
                self._blocked[stream.number] = stream
                break
            payload = bytes(data) if size == total else bytes(data[at : at + size])
            self._out.append(FRAME.pack(size >> 8, size & 0xFF, frames.DATA, 0, stream.number))
            self.write(payload)
            self._budget.sent_data()
            stream.window -= size
            self._window -= size
            self._room -= size
            at += size
        return at

    def finish_stream(self, stream: Http2Stream) -> None:
        """Ends a stream whose last frame was written. A peer that still sends is asked to stop (RFC 9113 §8.1)."""
        if stream.number in self._peer_ended:
            self._forget(stream)
        else:
            self.reset_stream(stream, frames.NO_ERROR)

    def reset_stream(self, stream: Http2Stream, code: int) -> None:
        self.write(frame(frames.RST_STREAM, 0, stream.number, NUMBER.pack(code)))
        self._note_cut(stream.number)
        self._forget(stream)

    def abort_stream(self, stream: Http2Stream, code: int) -> None:
        """Resets the stream, which its handler does not expect."""
        self.reset_stream(stream, code)
        if stream.handler is not None:
            stream.handler.aborted()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._scheduled = False
        if not self._out or self.transport.is_closing():
            return
        out, self._out = self._out, []
        was_full = self._room <= 0
        self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._paused:
            return
        self._room = _AT_ONCE
        if was_full and self._blocked:
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Continues when the transport has room."""
        if self._blocked and not self._closing:
            self._unblock(tuple(self._blocked.values()))

    def _unblock(self, streams: tuple[Http2Stream, ...]) -> None:
        for stream in streams:
            if self._window <= 0 or self._room <= 0:
                break  # the others stay blocked
            if stream.window > 0 and self._blocked.pop(stream.number, None) is not None:
                stream.unblock()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _late(self, stream: Http2Stream, now: float) -> None:
        if not stream.open:
            return  # the end of an earlier stream in this loop closed it too
        if stream.stuck_by < now:
            self.abort_stream(stream, frames.CANCEL)
        elif stream.handler is not None:
            stream.deadline = math.inf
            stream.handler.expired()

    def _forget(self, stream: Http2Stream) -> None:
        stream.gone()
        if self.streams.pop(stream.number, None) is not None:
            self._host.stream_closed()
        self._blocked.pop(stream.number, None)
        self._peer_ended.discard(stream.number)
        if not self.streams:
            self._idle_since = self._host.tick
            if self._leaving:
                self._loop.call_soon(self._close_when_idle)

    def _note_cut(self, number: int) -> None:
        if number in self._peer_ended:
            return
        self._cut[number] = None
        if len(self._cut) > _MOST_CUT:
            oldest = next(iter(self._cut))
            del self._cut[oldest]
            self._cut_before = max(self._cut_before, oldest)

    def _check_closed(self, number: int) -> None:
        """Handles a frame of a closed stream. Raises PeerError if the peer ended that stream itself."""
        if number not in self._cut and number > self._cut_before:
            raise PeerError(frames.STREAM_CLOSED)
        self._budget.take_frame(self._host.tick)

    def _close_when_idle(self) -> None:
        if not self.streams and not self._closing:
            self._close()

    def _close(self) -> None:
        """Sends what is written and ends our side, then waits for the peer's end. A close with unread bytes would reset
        the connection, and the peer could lose what was sent last."""
        self._closing = True
        self._flush()
        transport = self.transport
        if transport.is_closing():
            return
        waiting = transport.get_write_buffer_size() > 0
        self._write_by = self.write_deadline() if waiting else self._host.tick + LINGER
        if transport.can_write_eof():
            transport.resume_reading()  # what comes is dropped
            transport.write_eof()
        else:
            transport.close()

    def _end_streams(self) -> None:
        streams, self.streams = self.streams, {}
        self._blocked.clear()
        for stream in streams.values():
            stream.gone()
            self._host.stream_closed()
            if stream.handler is not None:
                stream.handler.aborted()

    def _give_up(self, code: int) -> None:
        """Reports to the peer what it did wrong, and closes."""
        if self._closing:
            return
        self._closing = True
        self._end_streams()
        self.write(frame(frames.GOAWAY, 0, 0, NUMBER.pack(self._taken) + NUMBER.pack(code)))
        self._close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> bytes:
        """Reads whole frames. Returns the rest."""
        at, size = 0, len(data)
        if not self._preface:
            if size < len(PREFACE):
                if not PREFACE.startswith(data):
                    raise PeerError(frames.PROTOCOL_ERROR)
                return data
            if not data.startswith(PREFACE):
                raise PeerError(frames.PROTOCOL_ERROR)
            self._preface, at = True, len(PREFACE)
        while size - at >= 9:
            high, low, kind, flags, number = FRAME.unpack_from(data, at)
            length = high << 8 | low
            if length > _MAX_FRAME:
                raise PeerError(frames.FRAME_SIZE_ERROR)
            end = at + 9 + length
            if end > size:
                break
            self._take(kind, flags, number & MOST_WINDOW, data[at + 9 : end])
            at = end
            if self._closing:
                return b""
        return data[at:]

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Handles one frame."""
        if not self._settled and kind != frames.SETTINGS:
            raise PeerError(frames.PROTOCOL_ERROR)  # they come first (RFC 9113 §3.4)
        if self.blocks.stream and (kind != frames.CONTINUATION or number != self.blocks.stream):
            raise PeerError(frames.PROTOCOL_ERROR)
        if kind == frames.DATA:
            self._data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, number, payload)
        elif kind == frames.RST_STREAM:
            self._peer_reset(number, payload)
        else:
            self._budget.take_frame(self._host.tick)
            self._control(kind, flags, number, payload)

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Handles a frame without content."""
        if kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == frames.PING:
            self._ping(flags, number, payload)
        elif kind == frames.PRIORITY:
            self._priority(number, payload)
        elif kind == frames.PUSH or (kind == frames.GOAWAY and number):
            raise PeerError(frames.PROTOCOL_ERROR)
        # GOAWAY and unknown kinds say nothing that a server needs

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0 or number > self._last:
            raise PeerError(frames.PROTOCOL_ERROR)
        size = len(payload)
        self._credit -= size
        if self._credit < 0:
            raise PeerError(frames.FLOW_CONTROL_ERROR)
        self._unread += size
        if self._unread >= self._whole_window // 2:
            self.write(frame(frames.WINDOW_UPDATE, 0, 0, NUMBER.pack(self._unread)))
            self._credit += self._unread
            self._unread = 0
        if flags & frames.PADDED:
            payload = unpadded(payload)
        if not payload and not flags & frames.END_STREAM:
            self._budget.take_frame(self._host.tick)
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
            return
        if number in self._peer_ended:
            self._blame(stream, frames.STREAM_CLOSED)
            return
        if not stream.take(size):
            self._blame(stream, frames.FLOW_CONTROL_ERROR)
            return
        stream.consume(size)
        ends = bool(flags & frames.END_STREAM)
        if stream.length is not None and not stream.count(len(payload), ends=ends):
            self._blame(stream, frames.PROTOCOL_ERROR)
            return
        if ends:
            self._peer_ended.add(number)
        if payload and stream.handler is not None:
            stream.handler.received(payload)
        if ends:
            self._peer_ends(stream)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if number % 2 == 0:
            raise PeerError(frames.PROTOCOL_ERROR)
        if flags & frames.PADDED:
            payload = unpadded(payload)
        if flags & frames.PRIORITIZED:
            if len(payload) < 5:
                raise PeerError(frames.FRAME_SIZE_ERROR)
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._block_complete(flags, number, payload)
        else:
            self.blocks.begin(number, flags, payload)
            self._headers_by = self._host.tick + self._host.timeouts.header

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if not self.blocks.stream:
            raise PeerError(frames.PROTOCOL_ERROR)
        self.blocks.add(payload)
        if flags & frames.END_HEADERS:
            self._headers_by = math.inf
            self._block_complete(self.blocks.flags, number, self.blocks.end())

    def _block_complete(self, flags: int, number: int, block: bytes) -> None:
        kind, headers = self.blocks.read(block)
        stream = self.streams.get(number)
        if stream is not None:
            if number in self._peer_ended:
                self._blame(stream, frames.STREAM_CLOSED)
            elif kind is not BlockKind.TRAILERS or not flags & frames.END_STREAM:
                self._blame(stream, frames.PROTOCOL_ERROR)
            else:
                self._peer_ends(stream)
        elif number <= self._last:
            self._check_closed(number)
        else:
            self._last = number
            if kind is BlockKind.REQUEST:
                self._open(flags, number, headers)
            else:
                self._budget.take_reset(self._host.tick)
                self._refuse(number, frames.PROTOCOL_ERROR)

    def _open(self, flags: int, number: int, headers: dict[bytes, bytes]) -> None:
        """Opens a stream."""
        host = self._host
        if self._leaving or len(self.streams) >= host.max_streams:
            self._budget.take_frame(host.tick)
            self._refuse(number, frames.REFUSED_STREAM)
            return
        if not host.stream_opened():
            self._refuse(number, frames.REFUSED_STREAM)
            return
        self._taken = number
        stream = self.streams[number] = Http2Stream(self, number, self._initial_window, host.tick)
        ends = bool(flags & frames.END_STREAM)
        if b"content-length" in headers:
            given = headers[b"content-length"]
            stream.length = int(given) if given.isdigit() and len(given) < 16 else -1
            if not stream.count(0, ends=ends):
                self._blame(stream, frames.PROTOCOL_ERROR)
                return
        if ends:
            self._peer_ended.add(number)
        handler = stream.handler = host.handler(headers, stream)
        if handler is not None and ends:
            handler.half_closed()

    def _refuse(self, number: int, code: int) -> None:
        """Refuses a stream."""
        self.write(frame(frames.RST_STREAM, 0, number, NUMBER.pack(code)))
        self._note_cut(number)

    def _peer_ends(self, stream: Http2Stream) -> None:
        if stream.open:
            self._peer_ended.add(stream.number)
            if stream.handler is not None:
                stream.handler.half_closed()

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise PeerError(frames.FRAME_SIZE_ERROR)
        more = NUMBER.unpack(payload)[0] & MOST_WINDOW
        if number == 0:
            if more == 0:
                raise PeerError(frames.PROTOCOL_ERROR)
            self._window += more
            if self._window > MOST_WINDOW:
                raise PeerError(frames.FLOW_CONTROL_ERROR)
            self._continue()
            return
        if number > self._last:
            raise PeerError(frames.PROTOCOL_ERROR)
        stream = self.streams.get(number)
        if stream is None:
            return
        stream.window += more
        if more == 0 or stream.window > MOST_WINDOW:
            self._blame(stream, frames.FLOW_CONTROL_ERROR if more else frames.PROTOCOL_ERROR)
        elif number in self._blocked:
            self._unblock((stream,))

    def _peer_reset(self, number: int, payload: bytes) -> None:
        if number == 0 or number > self._last:
            raise PeerError(frames.PROTOCOL_ERROR)
        if len(payload) != 4:
            raise PeerError(frames.FRAME_SIZE_ERROR)
        stream, tick = self.streams.get(number), self._host.tick
        if stream is None:
            self._budget.take_frame(tick)
            return
        dropped = not stream.answered and tick - stream.opened_at < _YOUNG
        self._forget(stream)
        if stream.handler is not None:
            stream.handler.aborted()
        if dropped:
            self._budget.take_reset(tick)

    def _blame(self, stream: Http2Stream, code: int) -> None:
        """Resets the stream after a protocol error."""
        self.abort_stream(stream, code)
        self._budget.take_reset(self._host.tick)

    def _priority(self, number: int, payload: bytes) -> None:
        """Ignores a PRIORITY frame (RFC 9113 §5.3)."""
        if number == 0:
            raise PeerError(frames.PROTOCOL_ERROR)
        if len(payload) != 5:
            raise PeerError(frames.FRAME_SIZE_ERROR)

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise PeerError(frames.PROTOCOL_ERROR)
        if len(payload) != 8:
            raise PeerError(frames.FRAME_SIZE_ERROR)
        if not flags & frames.ACK:
            self.write(frame(frames.PING, frames.ACK, 0, payload))
        elif self._noticing and payload == _NOTICE:
            self.go_away()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise PeerError(frames.PROTOCOL_ERROR)
        if flags & frames.ACK:
            if payload:
                raise PeerError(frames.FRAME_SIZE_ERROR)
            return
        if len(payload) % 6:
            raise PeerError(frames.FRAME_SIZE_ERROR)
        if not self._settled:
            self._settled, self._settings_by = True, math.inf
            self._idle_since = self._host.tick
        wider = False
        for name, value in dict(SETTING.iter_unpack(payload)).items():  # the last value of each counts
            if name == frames.INITIAL_WINDOW:
                wider = self._resize_windows(value)
            elif name == frames.FRAME_SIZE:
                if not frames.FIRST_FRAME <= value <= frames.MOST_FRAME:
                    raise PeerError(frames.PROTOCOL_ERROR)
                self._max_frame = min(value, _MAX_FRAME)
            elif name == frames.ENABLE_PUSH and value > 1:
                raise PeerError(frames.PROTOCOL_ERROR)
        self.write(frame(frames.SETTINGS, frames.ACK, 0))
        if wider:
            self._continue()

    def _resize_windows(self, value: int) -> bool:
        """The peer's window of each stream, also of those that are open. Returns True if they grow."""
        if value > MOST_WINDOW:
            raise PeerError(frames.FLOW_CONTROL_ERROR)
        change, self._initial_window = value - self._initial_window, value
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MOST_WINDOW:
                raise PeerError(frames.FLOW_CONTROL_ERROR)
        return change > 0
