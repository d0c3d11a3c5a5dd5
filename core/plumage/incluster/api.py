"""A client of the API server over plain REST: GET and watch, with the pod's own token and the cluster's CA.

There are at most two calls a minute, so each opens a connection of its own. That reads a rotated token or CA, and no
pooled connection can be half open. (The generated client would be another 11 MiB and 0.15 s of CPU in each router.)
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from plumage.api_server import ApiServerError, read_refusal
from plumage.incluster.config import ApiServerConfig

__all__ = ["ApiServer"]

ACCEPTED: Final = "application/json, application/jwk-set+json"  # the keys are served as the latter only; else 406
CONNECT: Final = 5.0  # seconds
ANSWER: Final = 30.0
SLACK: Final = 10.0  # seconds that a watch may exceed its requested time before it counts as frozen
MOST_BYTES: Final = 64 << 20
LINE: Final = 4 << 20  # bytes of a watch's read buffer; one watched object has twice as many at most


class ApiServer:
    """Calls of one pod."""

    def __init__(self, config: ApiServerConfig) -> None:
        self._config = config
        self._base = config.base(os.environ)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON at `path`."""
        timeouts = aiohttp.ClientTimeout(total=ANSWER, sock_connect=CONNECT)
        async with self._answer(path, params or {}, timeouts) as answer:
            parts, size = [], 0
            async for part in answer.content.iter_any():
                size += len(part)
                if size > MOST_BYTES:
                    raise ApiServerError(f"the API server answers {path} with more than {MOST_BYTES} bytes")
                parts.append(part)
            return _json(b"".join(parts), path)

    async def watch(self, path: str, seconds: int, params: Mapping[str, str]) -> AsyncIterator[Mapping[str, Any]]:
        """Events as they arrive, for about `seconds`. A watch that the server does not end in time is cancelled."""
        asked = {**params, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        timeouts = aiohttp.ClientTimeout(total=seconds + SLACK, sock_connect=CONNECT)
        async with self._answer(path, asked, timeouts) as answer:
            while line := await answer.content.readline():
                yield _json(line, path)

    @asynccontextmanager
    async def _answer(
        self, path: str, params: Mapping[str, str], timeouts: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": ACCEPTED}
        connector = aiohttp.TCPConnector(ssl=self._trust(), force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeouts, read_bufsize=LINE) as session,
                session.get(self._base + path, params=dict(params), headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise await _refusal(answer, path)
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiServerError(f"the API server can't be reached: {_brief(error)}") from error

    def _token(self) -> str:
        path = self._config.token_file
        try:
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiServerError(f"cannot read the pod's token in {path}: {type(error).__name__}") from error
        if not token or not token.isascii() or any(map(str.isspace, token)):
            raise ApiServerError(f"{path} must hold a token on a single line")
        return token

    def _trust(self) -> ssl.SSLContext | bool:
        if not self._base.startswith("https://"):
            return True
        path = self._config.ca_file
        try:
            return ssl.create_default_context(cafile=path)
        except (OSError, ssl.SSLError) as error:
            raise ApiServerError(f"cannot read the cluster's CA in {path}: {_brief(error)}") from error


async def _refusal(answer: aiohttp.ClientResponse, path: str) -> ApiServerError:
    """The API server's message, with a remedy."""
    refusal = read_refusal(await answer.content.read(65_536))
    message = " ".join(refusal.message.split())[:500] or f"it answered {answer.status} to {path}"
    hints = {401: "; the pod's token is not accepted: is its volume mounted, and are the clocks right?"}
    text = f"the API server refuses: {message}{hints.get(answer.status, '')}"
    return ApiServerError(text, answer.status, refusal.reason)


def _json(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ApiServerError(f"the API server's answer to {path} is no JSON") from error


def _brief(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {str(error)[:300]}"
