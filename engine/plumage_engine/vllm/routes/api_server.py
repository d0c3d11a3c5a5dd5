"""The plugin's routes in vLLM's API server, as ASGI middleware around vLLM's application.

| route                     | what                                                                                   |
|---------------------------|----------------------------------------------------------------------------------------|
| GET /v1/plumage/snapshot  | the cached blocks with token ids, msgpack; 404 where the engine publishes no KV events |
| GET /v1/plumage/stats     | load, cache, every counter, which features are on and why not                          |
| POST /v1/plumage/drain    | {"timeoutSeconds": number}: wait until no request is open                              |
| GET /v1/plumage/tables    | what the stop policy has learned; 404 where it shares nothing                          |
| POST /v1/plumage/tables   | learn from other engines; damaged or foreign tables are refused and counted            |
| POST /v1/plumage/promote  | {"uses": {"BLOCK HASH": uses}}: the pool's hotness, for host memory and promotion      |
| POST /v1/plumage/feather  | another batching policy: the setting `feather`; null for order of arrival              |
| POST /v1/plumage/adapters | {"adapters": {"NAME": "FOLDER OR REPOSITORY"}}: the LoRA adapters to serve             |

They stand outside of vLLM's own middleware: `--api-key` and CORS rules are for clients, these routes have a token of
their own. Without a token only this machine is served. Where vLLM has an API key, every route but reads needs it here:
vLLM's own check omits `/invocations`, `/tokenize`, `/pause` and others.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from pydantic import SecretStr
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from plumage.errors import StateError
from plumage.loopback import is_loopback
from plumage_engine.adapters import AdapterLoader, parse_wanted
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics
from plumage_engine.vllm.routes.refusal import RefusedError

__all__ = ["PREFIX", "TOKEN_FILE", "ApiServerRoutes", "App"]

TOKEN_FILE = "PLUMAGE_ADMIN_TOKEN_FILE"
"""Environment variable with the path of the token's file; the setting `routes.adminTokenFile` precedes it."""

PREFIX = "/v1/plumage/"
_MAX_BODY = 4 << 20
_BODY_SECONDS = 10.0
_ANSWER_SECONDS: Mapping[str, float] = {"snapshot": 60.0}
_QUICK_SECONDS = 5.0
_SCRAPE_SECONDS = 1.0
_MAX_DRAIN = 3600.0
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
# vLLM checks these itself: entrypoints/serve/middleware/authenticate.py
_CHECKED_BY_VLLM = ("/v1", "/v2", "/inference", "/cohere")
_POLL_SECONDS = 0.1  # between two checks of a drain

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Calls the engine core → HTTP status and body."""


class _TimeoutError(RefusedError):
    """The engine core is busy, perhaps with a long step."""


class _DisabledError(RefusedError):
    """The engine core has no plugin, or can't be reached."""


class ApiServerRoutes:
    """The middleware.

    ask: calls the engine core; None where the plugin is not configured.
    adapters: loads LoRA adapters; without it `no_adapters` says why not.
    absent: the guard of the feature without which no call is possible; None while calls are possible.
    The application and the other attributes are set as vLLM makes them: see `PlumageEndpoints`.
    """

    def __init__(self) -> None:
        self.app: App = _no_app
        self.ask: Ask | None = None
        self.adapters: AdapterLoader | None = None
        self.no_adapters = "vLLM's list of models is not known"
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
            ("POST", "adapters"): self._want_adapters,
        }

    def disable(self, guard: Guard) -> None:
        """Call the engine core no more, until vLLM is restarted. Stats and metrics report the reason."""
        self.absent = guard
        self.metrics.stats = {"counters": guard.counters.by_name(), "features": {guard.feature: guard.report()}}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif path.startswith(PREFIX):
            answer = await self._answer(Request(scope, receive), path.removeprefix(PREFIX))
            await answer(scope, receive, send)
        elif _needs_api_key(scope, path) and not self._has_api_key(Request(scope)):
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._forward(scope, receive, send)
        else:
            if path == "/metrics":
                await self._refresh_metrics()
            await self.app(scope, receive, send)

    def _has_api_key(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        secret = given.encode(errors="replace")
        known = [hmac.compare_digest(secret, key.encode()) for key in self.api_keys]
        return not known or (scheme.lower() == "bearer" and any(known))

    async def _forward(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request to vLLM and count it as in flight, for drains."""
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
                raise RefusedError(404, f"there is no {request.method} {PREFIX}{name} here")
            return await handler(request)
        except RefusedError as refused:
            body = {"error": {"message": str(refused), "code": refused.status}}
            headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
            return JSONResponse(body, refused.status, headers)

    def _admit(self, request: Request) -> None:
        if self.token is None:
            if request.client is None or not is_loopback(request.client.host):
                raise RefusedError(403, f"without a token only this machine is served: set {TOKEN_FILE}")
            return
        given = request.headers.get("authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, b"Bearer " + self.token.get_secret_value().encode()):
            raise RefusedError(401, "missing or wrong bearer token")

    # -- the routes ----------------------------------------------------------------------------------------------------

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

    async def _want_adapters(self, request: Request) -> Response:
        if self.adapters is None:
            raise RefusedError(501, f"no adapter can be loaded: {self.no_adapters}")
        try:
            wanted = parse_wanted(await _body(request))
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        return JSONResponse(await self.adapters.want(wanted))

    async def _stats(self, request: Request) -> Response:
        return JSONResponse({**await self._fetch_stats(), "inFlight": self.in_flight, "draining": self.draining})

    async def _drain(self, request: Request) -> Response:
        """Wait until no request is open. `draining` stays true: a drained replica is deleted."""
        seconds = _timeout(await _body(request))
        self.draining = True
        drained = await self._is_idle()
        try:
            async with asyncio.timeout(seconds):
                while not drained:
                    await asyncio.sleep(_POLL_SECONDS)
                    drained = await self._is_idle()
        except TimeoutError:
            pass
        return JSONResponse({"drained": drained, "inFlight": self.in_flight})

    async def _is_idle(self) -> bool:
        """Whether no request is open, here or in the engine.

        Other API server processes may have requests in the same engine, so the engine is asked where that is possible.
        """
        if self.in_flight:
            return False
        try:
            stats = await self._fetch_stats()
        except _TimeoutError:
            return False
        return not stats.get("running", 0) + stats.get("waiting", 0)

    # -- calls of the engine core --------------------------------------------------------------------------------------

    async def _relay(self, name: str, body: bytes, media_type: str = "application/json") -> Response:
        status, content = await self._ask_core(name, body)
        return Response(content, status, media_type=media_type if status == 200 else "application/json")

    async def _fetch_stats(self) -> dict[str, Any]:
        try:
            status, content = await self._ask_core("stats", b"")
        except _DisabledError:
            return dict(self.metrics.stats)
        if status != 200:
            raise RefusedError(status, content.decode(errors="replace"))
        stats: dict[str, Any] = json.loads(content)
        return stats

    async def _ask_core(self, name: str, body: bytes, seconds: float | None = None) -> tuple[int, bytes]:
        self._refuse_if_disabled()
        if self.ask is None:
            raise RefusedError(404, "the plugin is off: PLUMAGE_VLLM or --additional-config switches it on")
        try:
            async with asyncio.timeout(seconds or _ANSWER_SECONDS.get(name, _QUICK_SECONDS)):
                status, content = await self.ask(name, body)
        except TimeoutError:
            raise _TimeoutError(503, "the engine core did not answer in time") from None
        except Exception as error:  # dead, shutting down, or without our method
            self._refuse_if_disabled()
            raise RefusedError(503, f"the engine core did not answer: {type(error).__name__}") from error
        return status, content

    def _refuse_if_disabled(self) -> None:
        if self.absent is not None:
            raise _DisabledError(503, f"{self.absent.feature} is off: {self.absent.reason}")

    async def _refresh_metrics(self) -> None:
        """Fetch stats before a scrape. An engine core that does not answer leaves the last numbers."""
        try:
            status, content = await self._ask_core("stats", b"", _SCRAPE_SECONDS)
        except RefusedError:
            return
        if status == 200:
            self.metrics.stats = json.loads(content)


def _needs_api_key(scope: Scope, path: str) -> bool:
    """Whether the request changes something and vLLM's own check omits its path."""
    return scope["method"] not in _READ_METHODS and not path.startswith(_CHECKED_BY_VLLM)


async def _no_app(scope: Scope, receive: Any, send: Any) -> None:
    raise StateError("the application is not built yet")


async def _body(request: Request) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > _MAX_BODY:
                    raise RefusedError(413, f"a body here has at most {_MAX_BODY} bytes")
    except (TimeoutError, ClientDisconnect):
        raise RefusedError(408, "the body did not arrive in time") from None
    return bytes(data)


def _timeout(body: bytes) -> float:
    try:
        seconds = float(json.loads(body)["timeoutSeconds"]) if body else 60.0
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise RefusedError(400, 'the body must be {"timeoutSeconds": number}') from None
    if not 0 <= seconds <= _MAX_DRAIN:
        raise RefusedError(400, f"timeoutSeconds must be within 0 and {_MAX_DRAIN:g}")
    return seconds
