"""One stream of HTTP/2: what waits until its peer takes it, and what the peer may send.

Bytes that wait count in the memory of request bodies. Without memory for them the stream ends: its peer does not read.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from plumage_router.extproc import frames
from plumage_router.extproc.frames import NUMBER, frame
from plumage_router.http.body_memory import BodyMemory, BodyReservation

__all__ = ["STREAM_WINDOW", "Carrier", "Http2Stream", "StreamHandler"]

STREAM_WINDOW: Final = 1 << 20
"""Bytes that a peer may send on a stream before we let it send more."""
_MAX_QUEUED: Final = 1 << 20  # bytes that wait for a stream's window, before the stream is not read from


class StreamHandler(Protocol):
    """Answers one stream. Ends with `Http2Stream.end` or `reset`, or by `aborted`."""

    def received(self, data: bytes) -> None: ...

    def half_closed(self) -> None:
        """The peer sends no more."""
        ...

    def aborted(self) -> None:
        """The stream is gone: nothing can be sent."""
        ...

    def expired(self) -> None:
        """The stream's `deadline` passed."""
        ...


class Carrier(Protocol):
    """The connection of a stream. peer: the address of its other side. memory: for bytes that wait."""

    peer: str
    memory: BodyMemory

    def write(self, data: bytes) -> None:
        """Writes a frame, or a part of one."""
        ...

    def write_deadline(self) -> float:
        """When a peer that takes nothing from now on is given up."""
        ...

    def send_data(self, stream: Http2Stream, data: bytes | bytearray) -> int:
        """Sends as many bytes as the windows and the transport allow, and returns their number. Calls `unblock` when
        they allow more."""
        ...

    def finish_stream(self, stream: Http2Stream) -> None:
        """Ends a stream whose last frame was written."""
        ...

    def reset_stream(self, stream: Http2Stream, code: int) -> None: ...

    def abort_stream(self, stream: Http2Stream, code: int) -> None:
        """Resets the stream, which its handler does not expect."""
        ...


class Http2Stream:
    """One stream. `open`: something may be sent. `deadline`: when the handler's `expired` is called.

    `window`, `credit`: bytes that we, and the peer, may send.
    """

    __slots__ = (
        "_blocked", "_connection", "_ending", "_head", "_kept", "_unread", "_waiting", "credit", "deadline", "handler",
        "length", "number", "open", "opened_at", "stuck_by", "window",
    )  # fmt: skip

    def __init__(self, connection: Carrier, number: int, window: int, now: float) -> None:
        self._connection = connection
        self._blocked = bytearray()  # waits for a window, or for room in the transport
        self._kept: BodyReservation | None = None  # memory of a body that waits there
        self._waiting: BodyReservation | None = None  # memory of what else waits there
        self._ending: bytes | None = None  # trailers that follow what waits
        self._head: bytes | None = None
        self._unread = 0  # bytes received for which the peer got no new window
        self.handler: StreamHandler | None = None
        self.number = number
        self.open = True
        self.window = window
        self.credit = STREAM_WINDOW
        self.length: int | None = None  # bytes that are to come, if the peer said so
        self.opened_at = now
        self.deadline = math.inf
        self.stuck_by = math.inf  # when the stream ends if the peer takes no byte until then

    @property
    def peer(self) -> str:
        """The address of the connection's other side; "" on a Unix socket."""
        return self._connection.peer

    @property
    def memory(self) -> BodyMemory:
        return self._connection.memory

    @property
    def answered(self) -> bool:
        """Something was sent."""
        return self._head is None

    def head(self, block: bytes) -> None:
        """Sets the headers, a block of `literal`s; they are sent before the first data."""
        self._head = block

    def keep(self, body: BodyReservation) -> None:
        """Keeps the memory of the next body until `finish_body`, the last waiting byte or the end of the stream."""
        assert self._kept is None, "a call sends one body"
        self._kept = body

    def finish_body(self) -> None:
        """Ends the body that `keep` was for: all of it is sent, or waits."""
        kept = self._kept
        if kept is not None and not self._blocked:
            self._kept = None
            self.memory.release(kept)

    def send(self, data: bytes) -> None:
        """Sends the bytes, or lets them wait for the peer. Without memory for them the stream is reset."""
        if not self.open:
            return
        self._send_head()
        sent = 0 if self._blocked else self._connection.send_data(self, data)
        if sent == len(data):
            return
        if not self._blocked:
            self.stuck_by = self._connection.write_deadline()
        if self._reserve(len(self._blocked) + len(data) - sent):
            self._blocked += memoryview(data)[sent:]
        elif self.open:
            self._crowded()

    def end(self, trailers: bytes) -> None:
        """Ends the stream with trailers, a block of `literal`s, after what was sent."""
        if self.open and self._ending is None:
            self._send_head()
            self._ending = trailers
            self._finish()

    def reset(self) -> None:
        """Ends the stream at once, as an error."""
        if self.open:
            self._connection.reset_stream(self, frames.CANCEL)

    # -- for the connection -------------------------------------------------------------------------------------------

    def unblock(self) -> None:
        """Sends what waits: a window grew, or the transport has room."""
        if self._blocked:
            sent = self._connection.send_data(self, self._blocked)
            del self._blocked[:sent]
            if sent:
                self.stuck_by = self._connection.write_deadline()
            if self._blocked:
                return
            self.stuck_by = math.inf
            self._release()
        self._finish()
        if self.open and self._unread:
            self.consume(0)

    def take(self, size: int) -> bool:
        """Bytes came. Returns False if the peer had no window for them."""
        self.credit -= size
        return self.credit >= 0

    def count(self, size: int, *, ends: bool) -> bool:
        """Bytes of the content came, and its end perhaps. Returns False if they differ from `length`."""
        if self.length is None:
            return True
        self.length -= size
        return self.length == 0 if ends else self.length >= 0

    def consume(self, size: int) -> None:
        """Bytes came. The peer may send as many again, unless it does not read what it gets."""
        self._unread += size
        if self._unread >= STREAM_WINDOW // 2 and len(self._blocked) < _MAX_QUEUED:
            self._connection.write(frame(frames.WINDOW_UPDATE, 0, self.number, NUMBER.pack(self._unread)))
            self.credit += self._unread
            self._unread = 0

    def gone(self) -> None:
        """Nothing can be sent any more."""
        self.open = False
        self.deadline = self.stuck_by = math.inf
        self._blocked.clear()
        self._release()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._connection.write(frame(frames.HEADERS, frames.END_HEADERS, self.number, head))

    def _finish(self) -> None:
        if self._ending is not None and not self._blocked and self.open:
            flags = frames.END_HEADERS | frames.END_STREAM
            self._connection.write(frame(frames.HEADERS, flags, self.number, self._ending))
            self._connection.finish_stream(self)

    def _reserve(self, size: int) -> bool:
        """Reserves memory until there is some for `size` bytes. Returns False without it, or if the stream ended."""
        if self._kept is not None:
            size -= self._kept.size
        if self._waiting is not None:
            size -= self._waiting.size
        if size <= 0:
            return True
        if self._waiting is None:
            self._waiting = BodyReservation(self.peer, self._crowded)
        waiting = self._waiting
        if not self.memory.reserve(waiting, size):
            return False
        if not self.open:  # it made room for its own bytes
            self.memory.release(waiting)
            return False
        self.memory.unfinished(waiting)
        return True

    def _release(self) -> None:
        kept, waiting = self._kept, self._waiting
        self._kept = self._waiting = None
        if kept is not None:
            self.memory.release(kept)
        if waiting is not None:
            self.memory.release(waiting)

    def _crowded(self) -> None:
        """Resets the stream: the peer does not read, and there is no memory for what waits."""
        self._connection.abort_stream(self, frames.ENHANCE_YOUR_CALM)
