"""A client's connection over asyncio, as small as a client can be: it may read slowly, stop reading, or leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

__all__ = ["Connection", "LostError", "request_bytes"]

_HOST: Final = "127.0.0.1"
_CHAT: Final = "/v1/chat/completions"


class LostError(Exception):
    """The connection was refused, ended or broke before the answer was complete."""


def request_bytes(body: Mapping[str, Any] | bytes, key: str, *, path: str = _CHAT, close: bool = False) -> bytes:
    """A POST. close: ask for the connection's end."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    last = "close" if close else "keep-alive"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
        f"connection: {last}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Connection:
    """Call `answer` after `send`, then read all of `parts` before the next `send`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.keeps_alive = True
        self._length: int | None = None

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        """receive_buffer: bytes, for a client that reads slowly. Raises LostError."""
        try:
            if receive_buffer is None:
                return cls(*await asyncio.open_connection(_HOST, port))
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            client.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(client, (_HOST, port))
            except OSError:
                client.close()
                raise
            return cls(*await asyncio.open_connection(sock=client, limit=receive_buffer))
        except OSError as error:
            raise LostError from error

    async def send(self, data: bytes) -> None:
        """Raises LostError."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise LostError from error

    async def answer(self) -> int:
        """Reads the head; returns the status. Raises LostError."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise LostError from error
        lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        self.status = int(head[9:12])
        self.keeps_alive = lines.get("connection") != "close"
        chunked = lines.get("transfer-encoding") == "chunked"
        self._length = None if chunked else int(lines.get("content-length", 0))
        return self.status

    async def parts(self) -> AsyncIterator[bytes]:
        """The body in pieces as they were sent. Raises LostError."""
        try:
            if self._length is not None:
                yield await self._reader.readexactly(self._length)
                return
            while size := int(await self._reader.readline() or b"0", 16):
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise LostError from error

    async def read_all(self) -> int:
        """Reads head and body; returns the status. Raises LostError."""
        status = await self.answer()
        async for _ in self.parts():
            pass
        return status

    def abort(self) -> None:
        """Leaves at once: what it has not read yet is discarded."""
        self._writer.transport.abort()
