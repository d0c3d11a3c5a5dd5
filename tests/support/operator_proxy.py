"""A proxy before an API server with faults that a server may have: too many requests, conflicts, watches that stay open
and send nothing."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

__all__ = ["Answer", "Proxy", "proxied"]

_HOPS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
_LOOKS_S = 0.05


@dataclass(frozen=True)
class Answer:
    """An answer instead of the server's own."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


class Proxy:
    """instead: called with method and path of each request; if it returns an answer, the server gets no request.
    frozen: old and new watches get no byte; afterwards they get the events of that time."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.instead: Callable[[str, str], Answer | None] = lambda _method, _path: None
        self.frozen = False
        self.held = 0
        self.refused: list[float] = []
        self.url = ""

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """The same user's kubeconfig, with the proxy's address."""
        content = yaml.safe_load(original.read_text())
        content["clusters"][0]["cluster"]["server"] = self.url
        path.write_text(yaml.safe_dump(content))
        return path

    async def serve(self, ready: threading.Event, stopped: asyncio.Event) -> None:
        """Serves until `stopped`, with the server's own certificate, which is valid for this address too."""
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        plane = self._server.plane
        ours.load_cert_chain(plane.certificate("apiserver.crt"), plane.certificate("apiserver.key"))
        theirs = ssl.create_default_context(cafile=str(self._server.ca_file))
        connector = aiohttp.TCPConnector(ssl=theirs, limit=0)
        forever = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, timeout=forever, auto_decompress=False, trust_env=False
        ) as session:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(session, request)

            app = web.Application(client_max_size=16 << 20)
            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ours)
            await site.start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await stopped.wait()
            await runner.cleanup()

    async def _handle(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        answer = self.instead(request.method, request.path)
        if answer is not None:
            self.refused.append(time.monotonic())
            body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": answer.status}
            return web.json_response({**body, "reason": answer.reason}, status=answer.status, headers=answer.headers)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOPS}
        url = self._server.url + request.raw_path
        sent = await request.read() or None  # without this a GET would have a Content-Type, which the server refuses
        async with session.request(request.method, url, headers=headers, data=sent) as answer:
            return await self._forward(request, answer)

    async def _forward(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOPS}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        watching = request.query.get("watch", "") in ("true", "1")
        async for chunk in answer.content.iter_any():
            if watching and self.frozen:
                await self._thawed()
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _thawed(self) -> None:
        self.held += 1
        while self.frozen:  # noqa: ASYNC110 - the test's thread says so, which no event of this loop can hear
            await asyncio.sleep(_LOOKS_S)


@contextmanager
def proxied(server: Any) -> Iterator[Proxy]:
    """A proxy in a thread of its own."""
    proxy, ready = Proxy(server), threading.Event()
    stopped = asyncio.Event()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=lambda: runner.run(proxy.serve(ready, stopped)), daemon=True)
        thread.start()
        assert ready.wait(30)
        try:
            yield proxy
        finally:
            loop.call_soon_threadsafe(stopped.set)
            thread.join(10)
