"""A client of HTTP/2 on a real socket that sends what a test says, also what no library would."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from hpack import Encoder
from support.http2_peer import ACK, BEGIN, HEADERS, PING, SETTINGS, frame, goaway

Frame = tuple[int, int, int, bytes]


class Http2Client:
    """`await Http2Client.connect(port)`. `frames`: all that came. It answers SETTINGS once it has begun, and PING
    while `answers_pings`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.frames: list[Frame] = []
        self.answers_pings = True
        self.begun = False
        self.ended = False
        self.writer = writer
        self._encoder = Encoder()
        self._encoder.header_table_size = 0
        self._reader = reader
        self._came = asyncio.Event()
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(
        cls, port: int, *, tls: ssl.SSLContext | None = None, settings: bytes = b"", begin: bool = True
    ) -> Http2Client:
        """settings: the payload of the client's SETTINGS."""
        async with asyncio.timeout(30):
            client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
        if begin:
            client.begun = True
            client.send(BEGIN[:-9] + frame(SETTINGS, 0, 0, settings))
        return client

    def send(self, *frames: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(b"".join(frames))

    def request(self, number: int, path: bytes, *, flags: int = 0x4) -> None:
        """The headers of a gRPC call."""
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
                  (b"content-type", b"application/grpc"), (b"te", b"trailers")]  # fmt: skip
        self.send(frame(HEADERS, flags, number, bytes(self._encoder.encode(fields))))

    async def until(self, holds: object, seconds: float = 30.0) -> None:
        """Waits until `holds()` is true of what came."""
        assert callable(holds)
        async with asyncio.timeout(seconds):
            while not holds():
                self._came.clear()
                await self._came.wait()

    async def leaves(self) -> list[tuple[int, int]]:
        """Waits for the end of the connection. Returns last stream and code of each GOAWAY."""
        await self.until(lambda: self.ended)
        found = [goaway([one]) for one in self.frames]
        return [one for one in found if one is not None]

    def data(self, number: int) -> bytes:
        """The content that came on a stream."""
        return b"".join(payload for kind, _, stream, payload in self.frames if (kind, stream) == (0, number))

    def messages(self, number: int) -> Sequence[bytes]:
        """The gRPC messages that came on a stream."""
        data, found = self.data(number), []
        while len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[1:5]):
            size = int.from_bytes(data[1:5])
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found

    def close(self) -> None:
        self._task.cancel()
        self.writer.transport.abort()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                kind, flags, number = head[3], head[4], int.from_bytes(head[5:])
                self.frames.append((kind, flags, number, payload))
                if kind == SETTINGS and not flags & ACK and self.begun:
                    self.send(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK and self.answers_pings:
                    self.send(frame(PING, ACK, 0, payload))
                self._came.set()
        except (asyncio.IncompleteReadError, OSError):
            self.ended = True
            self._came.set()
