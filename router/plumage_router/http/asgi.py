"""Runs an ASGI application for every request that is not a completion, on the same port and in the same process.

These requests (health, metrics, models, admin) are rare, and FastAPI suits them; the completion path pays nothing for
it. Requests are complete before they get here. Answers are collected before they are sent. HEAD is a GET without the
answer's body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from plumage_router.http.downstream import DownstreamConnection
from plumage_router.http.errors import error_object
from plumage_router.http.request import Request
from plumage_router.http.wire import JSON

__all__ = ["Application", "AsgiRequest"]

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
_HOP_BY_HOP = frozenset((b"connection", b"content-length", b"transfer-encoding", b"keep-alive", b"date"))


class AsgiRequest:
    """A `Handler` that runs the application for one request. on_answer: called with the request and its status."""

    def __init__(
        self,
        application: Application,
        request: Request,
        client: DownstreamConnection,
        loop: asyncio.AbstractEventLoop,
        on_answer: Callable[[Request, int], None],
    ) -> None:
        self._on_answer = on_answer
        self._application = application
        self._request = request
        self._client = client
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._body_sent = False
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    @property
    def answering(self) -> bool:
        return False  # the answer is written at once

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def pause(self) -> None:
        return  # the answer is complete and small

    def resume(self) -> None:
        return

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._application(self._scope(), self._receive, self._send)
        except Exception:
            log.exception("the control surface failed on %s", self._request.target[:256])
            self._status, self._headers = 500, [(b"content-type", JSON)]
            self._body = [error_object(500, "The router failed on this request.", code="internal")]
        lines = b"".join(b"%b: %b\r\n" % (n, v) for n, v in self._headers if n.lower() not in _HOP_BY_HOP)
        request = self._request
        self._on_answer(request, self._status)
        self._client.respond(
            self._status,
            lines,
            b"".join(self._body),
            keep_alive=request.keep_alive,
            head_only=request.method == b"HEAD",
        )

    def _scope(self) -> dict[str, Any]:
        request = self._request
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.0" if request.http10 else "1.1",
            "method": "GET" if request.method == b"HEAD" else request.method.decode("latin-1"),
            "scheme": "http",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": None,
            "server": None,
            "state": {},
        }

    async def _receive(self) -> Message:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self._request.body.whole(), "more_body": False}
        await asyncio.Event().wait()  # ends when the client leaves, which cancels the task
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._body.append(bytes(message.get("body", b"")))
