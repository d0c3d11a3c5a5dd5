"""How other commands reach a pool that is up: a Unix socket in its folder, one JSON object a line each way.

Only the folder's owner can open the socket. A request is bounded in size and time, and each one is answered: with its
result, or with `error` and a sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumage.errors import PlumageError
from plumage_cli.errors import CliError, NoPoolError, trouble
from plumage_cli.local.folder import base_folder, live_pools

if TYPE_CHECKING:  # the commands that only ask need none of what a supervisor does
    from plumage_cli.local.keeper import KeptSocket
    from plumage_cli.local.supervisor import Supervisor

__all__ = ["ControlServer", "ask", "find_pool"]

log = logging.getLogger(__name__)

SOCKET = "control.sock"
_LONGEST = 65_536  # bytes of a request
_PATIENCE = 10.0  # seconds for a request to come
_LONGEST_ANSWER = 16 << 20  # bytes: a thousand replicas with their traffic have one or two million
_MOST_REPLICAS = 1000


class ControlServer:
    """Answers requests for one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._dropped = False

    async def start(self) -> None:
        path = self._supervisor.folder.path / SOCKET
        try:
            self._server = await asyncio.start_unix_server(self._accept, path=path, limit=_LONGEST)
        except OSError as error:
            raise CliError(f"can't make the control socket {trouble(error, path)}") from None

    @property
    def kept(self) -> KeptSocket:
        """For whoever keeps the folder whole."""
        from plumage_cli.local.keeper import KeptSocket

        path = self._supervisor.folder.path / SOCKET
        return KeptSocket(path, os.getpid, "other commands can't reach the pool", self._again)

    async def _again(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.start()

    async def stop(self) -> None:
        """Requests under way are dropped: a `scale` would have us wait until its replicas are warm."""
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
            reply = await self._answer(reader)
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except ConnectionError as error:
            if not self._dropped:  # once: it is told on the terminal of whoever runs the pool
                self._dropped = True
                log.warning("whoever made a control request did not wait for the answer: %s", error)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Mapping[str, Any]:
        try:
            match await _request(reader):
                case {"do": "status"}:
                    return self._supervisor.view()
                case {"do": "scale", "replicas": int(replicas)} if 0 <= replicas <= _MOST_REPLICAS:
                    await self._supervisor.scale(replicas)
                    return self._supervisor.view()
                case _:
                    return {"error": "no such request"}
        except PlumageError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": trouble(error)}


async def _request(reader: asyncio.StreamReader) -> Any:
    """What is asked for; CliError when it is no request, too long a one, or none comes."""
    try:
        async with asyncio.timeout(_PATIENCE):
            line = await reader.readline()
    except TimeoutError:
        raise CliError(f"no request came within {_PATIENCE:g} s") from None
    except ValueError:
        raise CliError(f"a request may have {_LONGEST:,} bytes") from None
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        raise CliError("a request must be one line of JSON") from None


def find_pool(name: str | None) -> Path:
    """The folder of the pool called `name`, or of the only one that is up; NoPoolError says what there is."""
    pools = live_pools()
    if name is None and len(pools) == 1:
        return base_folder() / pools[0]
    if name is not None and name in pools:
        return base_folder() / name
    if not pools:
        raise NoPoolError("no pool is up; start one with: plumage up examples/local.yaml")
    asked = f"no pool {name} is up" if name else "several pools are up; name one"
    raise NoPoolError(f"{asked}: {', '.join(pools)}")


def ask(folder: Path, request: dict[str, Any], *, timeout: float) -> dict[str, Any]:
    """One request to the pool in `folder`, and its view afterwards (`plumage_cli.local.view`); CliError when it can't
    be done or takes longer than `timeout` seconds."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(folder / SOCKET))
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = connection.makefile("rb").readline(_LONGEST_ANSWER)
    except TimeoutError:
        raise CliError(
            f"pool {folder.name} did not answer within {timeout:g} s: it is busy or halted, and may still do what it "
            "was asked; see: plumage status"
        ) from None
    except OSError as error:
        raise NoPoolError(
            f"pool {folder.name} can't be reached: {error.strerror}; it may be starting or ending"
        ) from None
    if not reply:
        raise CliError(f"pool {folder.name} ended before it answered")
    return _read(reply, folder.name)


def _read(reply: bytes, pool: str) -> dict[str, Any]:
    try:
        answer = json.loads(reply)
    except (ValueError, RecursionError):
        raise CliError(f"pool {pool} gave half an answer, or none that is one; it may be ending") from None
    if isinstance(answer, dict) and "error" in answer:
        raise CliError(str(answer["error"]))
    from plumage_cli.local.view import check  # its msgspec is needed only once a pool answered

    check(answer, pool)
    found: dict[str, Any] = answer
    return found
