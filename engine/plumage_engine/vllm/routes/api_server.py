"""The fleet's routes in vLLM's API server (entry point `vllm.endpoint_plugins`; switched on by VLLM_PLUGINS=plumage).

| route                    | what                                                                                     |
|--------------------------|------------------------------------------------------------------------------------------|
| GET /v1/plumage/snapshot | what is cached, with token ids, msgpack; 404 where the engine publishes no KV events      |
| GET /v1/plumage/stats    | load, cache, every counter, which features are on and why not                             |
| POST /v1/plumage/drain   | {"timeoutSeconds": number}: wait until nothing is in flight                               |
| GET /v1/plumage/tables   | what the stop policy has learned; 404 where it learns nothing                             |
| POST /v1/plumage/tables  | learn from other engines; damaged or foreign tables are refused and counted               |
| POST /v1/plumage/promote | {"heats": {"BLOCK HASH": uses}}: what the pool finds hot, for host memory, and promotion  |
| POST /v1/plumage/feather | another batching policy: what the settings have as `feather`; null for order of arrival   |

They stand outside of vLLM's own middleware: `--api-key` and its CORS rules are for clients, these routes have a token
of their own. Without one only this machine is answered. Where vLLM has an API key, every route that is not read with
GET asks for it: vLLM's own check leaves out `/invocations`, `/tokenize`, `/pause` and others.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from pydantic import SecretStr
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from plumage.errors import PlumageError, StateError
from plumage_engine.configuration import is_loopback
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics

__all__ = ["PREFIX", "TOKEN_FILE", "FleetRoutes"]

_log = logging.getLogger("vllm.plumage")

TOKEN_FILE = "PLUMAGE_ADMIN_TOKEN_FILE"
"""Environment variable that names the token's file, where the settings' `fleet.adminTokenFile` does not."""

PREFIX = "/v1/plumage/"
_MOST_BODY = 4 << 20
_BODY_SECONDS = 10.0
_ANSWER_SECONDS: Mapping[str, float] = {"snapshot": 60.0}
_QUICK_SECONDS = 5.0
_SCRAPE_SECONDS = 1.0
_LONGEST_DRAIN = 3600.0
_READ = ("GET", "HEAD", "OPTIONS")
_CHECKED = ("/v1", "/v2", "/inference", "/cohere")  # by vLLM itself: entrypoints/serve/middleware/authenticate.py
_LOOK = 0.1  # seconds between looks at what is in flight

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""A question for the engine core → HTTP status and body."""


class _RefusedError(PlumageError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _SlowError(_RefusedError):
    """The engine core is at work, on a long step it may be."""


class _AbsentError(_RefusedError):
    """The engine core, or the way to it, has nothing of ours."""


class FleetRoutes:
    """ASGI middleware. ask: None where the plugin is not configured, so that there is nothing to tell. absent: the
    feature for want of which there is nobody to ask. The application within, and the rest, come as vLLM makes them: see
    `PlumageEndpoints`."""

    def __init__(self) -> None:
        self.app: App = _no_app
        self.ask: Ask | None = None
        self.absent: Guard | None = None
        self.token: SecretStr | None = None
        self.api_keys: tuple[str, ...] = ()
        self.metrics = PluginMetrics()
        self.draining = False
        self.in_flight = 0
        self._handlers: Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", "snapshot"): self._snapshot,
            ("GET", "stats"): self._stats,
            ("POST", "drain"): self._drain,
            ("GET", "tables"): self._tables,
            ("POST", "tables"): self._learn,
            ("POST", "promote"): self._promote,
            ("POST", "feather"): self._feather,
        }

    def go_without(self, guard: Guard) -> None:
        """Nobody is asked from now on: what runs stock does so until it is restarted. Stats and metrics tell why."""
        self.absent = guard
        self.metrics.stats = {"counters": guard.counters.told(), "features": {guard.feature: guard.told()}}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif path.startswith(PREFIX):
            answer = await self._answer(Request(scope, receive), path.removeprefix(PREFIX))
            await answer(scope, receive, send)
        elif scope["method"] not in _READ and not path.startswith(_CHECKED) and not self._has_api_key(Request(scope)):
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._pass(scope, receive, send)
        else:
            if path == "/metrics":
                await self._refresh()
            await self.app(scope, receive, send)

    def _has_api_key(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        secret = given.encode(errors="replace")
        known = [hmac.compare_digest(secret, key.encode()) for key in self.api_keys]
        return not known or (scheme.lower() == "bearer" and any(known))

    async def _pass(self, scope: Scope, receive: Any, send: Any) -> None:
        """What a drain waits for."""
        self.in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: Request, name: str) -> Response:
        try:
            self._admit(request)
            handler = self._handlers.get((request.method, name))
            if handler is None:
                raise _RefusedError(404, f"there is no {request.method} {PREFIX}{name} here")
            return await handler(request)
        except _RefusedError as refused:
            body = {"error": {"message": str(refused), "code": refused.status}}
            headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
            return JSONResponse(body, refused.status, headers)

    def _admit(self, request: Request) -> None:
        if self.token is None:
            if request.client is None or not is_loopback(request.client.host):
                raise _RefusedError(403, f"without a token only this machine is answered: set {TOKEN_FILE}")
            return
        given = request.headers.get("authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, b"Bearer " + self.token.get_secret_value().encode()):
            raise _RefusedError(401, "missing or wrong bearer token")

    # -- the routes --------------------------------------------------------------------------------------------------

    async def _snapshot(self, request: Request) -> Response:
        return await self._relay("snapshot", b"", "application/msgpack")

    async def _tables(self, request: Request) -> Response:
        return await self._relay("tables", b"")

    async def _learn(self, request: Request) -> Response:
        return await self._relay("learn", await _body(request))

    async def _promote(self, request: Request) -> Response:
        return await self._relay("promote", await _body(request))

    async def _feather(self, request: Request) -> Response:
        return await self._relay("feather", await _body(request))

    async def _stats(self, request: Request) -> Response:
        return JSONResponse({**await self._pulled(), "inFlight": self.in_flight, "draining": self.draining})

    async def _drain(self, request: Request) -> Response:
        """`draining` is told from now on, for good: whoever asks for this takes the replica away."""
        seconds = _timeout(await _body(request))
        self.draining = True
        drained = await self._rests()
        try:
            async with asyncio.timeout(seconds):
                while not drained:
                    await asyncio.sleep(_LOOK)
                    drained = await self._rests()
        except TimeoutError:
            pass
        return JSONResponse({"drained": drained, "inFlight": self.in_flight})

    async def _rests(self) -> bool:
        """Other API server processes may have requests in the same engine: so the engine is asked as well, where there
        is somebody to ask."""
        if self.in_flight:
            return False
        try:
            stats = await self._pulled()
        except _SlowError:
            return False
        return not stats.get("running", 0) + stats.get("waiting", 0)

    # -- the engine core ---------------------------------------------------------------------------------------------

    async def _relay(self, name: str, body: bytes, media_type: str = "application/json") -> Response:
        status, content = await self._asked(name, body)
        return Response(content, status, media_type=media_type if status == 200 else "application/json")

    async def _pulled(self) -> dict[str, Any]:
        try:
            status, content = await self._asked("stats", b"")
        except _AbsentError:
            return dict(self.metrics.stats)
        if status != 200:
            raise _RefusedError(status, content.decode(errors="replace"))
        stats: dict[str, Any] = json.loads(content)
        return stats

    async def _asked(self, name: str, body: bytes, seconds: float | None = None) -> tuple[int, bytes]:
        self._refuse_if_absent()
        if self.ask is None:
            raise _RefusedError(404, "the plugin is off: PLUMAGE_VLLM or --additional-config switches it on")
        try:
            async with asyncio.timeout(seconds or _ANSWER_SECONDS.get(name, _QUICK_SECONDS)):
                status, content = await self.ask(name, body)
        except TimeoutError:
            raise _SlowError(503, "the engine core did not answer in time") from None
        except Exception as error:  # dead, shutting down, or without our method
            self._refuse_if_absent()
            raise _RefusedError(503, f"the engine core did not answer: {type(error).__name__}") from error
        return status, content

    def _refuse_if_absent(self) -> None:
        if self.absent is not None:
            raise _AbsentError(503, f"{self.absent.feature} is off: {self.absent.reason}")

    async def _refresh(self) -> None:
        """Before a scrape. An engine core that is away leaves the numbers as they were."""
        try:
            status, content = await self._asked("stats", b"", _SCRAPE_SECONDS)
        except _RefusedError:
            return
        if status == 200:
            self.metrics.stats = json.loads(content)


async def _no_app(scope: Scope, receive: Any, send: Any) -> None:
    raise StateError("the application is not built yet")


async def _body(request: Request) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > _MOST_BODY:
                    raise _RefusedError(413, f"a body here has at most {_MOST_BODY} bytes")
    except (TimeoutError, ClientDisconnect):
        raise _RefusedError(408, "the body did not come in time") from None
    return bytes(data)


def _timeout(body: bytes) -> float:
    try:
        seconds = float(json.loads(body)["timeoutSeconds"]) if body else 60.0
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise _RefusedError(400, 'the body must be {"timeoutSeconds": number}') from None
    if not 0 <= seconds <= _LONGEST_DRAIN:
        raise _RefusedError(400, f"timeoutSeconds must be within 0 and {_LONGEST_DRAIN:g}")
    return seconds
