"""Forwards connections from a listening socket of the machine's network to the API server in the cluster's own. A
socket stays in the network where it was made, so the cluster needs no other way in."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

__all__ = ["listen", "serve"]

_CHUNK = 1 << 16


def listen() -> socket.socket:
    """A listening socket on a free port of the loopback address."""
    return socket.create_server(("127.0.0.1", 0))


def serve(listening: socket.socket, host: str, port: int) -> None:
    """Forwards connections, in a thread that ends with the process."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    async def run() -> None:
        async with await asyncio.start_server(accept, sock=listening) as server:
            await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(run(),), name="relay", daemon=True).start()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()
