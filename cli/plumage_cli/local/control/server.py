"""The supervisor's side of the control socket, a Unix socket in the pool's folder.

Only the folder's owner can open the socket. A request is bounded in size and time. Every reply is the pool's view, or
an object with `error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from plumage.errors import PlumageError
from plumage_cli.errors import CliError, describe_os_error
from plumage_cli.local.folder.pool_folder import CONTROL_SOCKET
from plumage_cli.local.folder.watcher import WatchedSocket
from plumage_cli.local.pool.supervisor import Supervisor

__all__ = ["ControlServer"]

log = logging.getLogger(__name__)

_MAX_REQUEST = 65_536  # bytes of a request
_REQUEST_SECONDS = 10.0  # between the connection and the end of the request
_MAX_REPLICAS = 1000


class ControlServer:
    """Answers requests for one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._dropped = False

    async def start(self) -> None:
        path = self._supervisor.folder.path / CONTROL_SOCKET
        try:
            self._server = await asyncio.start_unix_server(self._accept, path=path, limit=_MAX_REQUEST)
        except OSError as error:
            raise CliError(f"can't make the control socket {describe_os_error(error, path)}") from None

    @property
    def watched(self) -> WatchedSocket:
        """The socket, for the folder's watcher."""
        path = self._supervisor.folder.path / CONTROL_SOCKET
        return WatchedSocket(path, os.getpid, "other commands can't reach the pool", self._restart)

    async def _restart(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.start()

    async def stop(self) -> None:
        """Stop at once and drop the requests that run: a `scale` could wait long for its replicas to warm up."""
        if self._server is not None:
            self._server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="control request")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await self._reply(reader)
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except ConnectionError as error:
            if not self._dropped:  # only once: the warning is printed on the terminal of the pool
                self._dropped = True
                log.warning("a client of the control socket did not wait for its reply: %s", error)
        finally:
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> Mapping[str, Any]:
        try:
            match await _request(reader):
                case {"do": "status"}:
                    return self._supervisor.view()
                case {"do": "scale", "replicas": int(replicas)} if 0 <= replicas <= _MAX_REPLICAS:
                    await self._supervisor.scale(replicas)
                    return self._supervisor.view()
                case _:
                    return {"error": "unknown request"}
        except PlumageError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": describe_os_error(error)}


async def _request(reader: asyncio.StreamReader) -> Any:
    """The request. CliError when it is no JSON, too long, or does not arrive in time."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            line = await reader.readline()
    except TimeoutError:
        raise CliError(f"no request arrived within {_REQUEST_SECONDS:g} s") from None
    except ValueError:
        raise CliError(f"a request may have at most {_MAX_REQUEST:,} bytes") from None
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        raise CliError("a request must be one line of JSON") from None
