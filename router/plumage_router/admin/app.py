"""The control surface as a Starlette application: health, metrics, models, status and explanations.

Errors have OpenAI's format. `/plumage/v1/…` shows traffic and needs the admin key. `/v1/plumage/fleet` is the
operator's report; the configured callers may read it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from plumage.errors import CallerRefusedError
from plumage.fleet_report import FLEET_PATH
from plumage_router.admin.fleet_report import fleet_report
from plumage_router.admin.status import metrics_page, status_document
from plumage_router.http.errors import RequestError, error_object, unknown_model
from plumage_router.http.listener import NEEDS_KEY, Listener
from plumage_router.http.paths import CHAT_PATH, COMPLETION_PATH, path_class, unserved_body
from plumage_router.pool_router import PoolRouter

__all__ = [
    "Guard",
    "add_metrics",
    "add_route",
    "bare_app",
    "json_response",
    "make_app",
    "model_entry",
    "needs_admin",
    "needs_admin_with_keys",
    "needs_key",
]

Guard: TypeAlias = Callable[[Request], None]
"""Raises HTTPException when the client may not have the answer."""

_CREATED = 1_700_000_000  # `created` of all models: OpenAI's clients need a number, and the real one is unknown


_NOT_FOUND = (
    "This path does not exist. The router serves POST /v1/chat/completions, POST /v1/completions and GET /v1/models."
)
_CODES = {404: "not_found", 405: "method_not_allowed"}


class _Unauthorized(HTTPException):
    """A key is missing or unknown. code: the kind of key, as for completions."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(401, message, headers={"www-authenticate": "Bearer"})
        self.code = code


class _OnlyPost:
    """Answers 405 for a completion's path with another method. POST requests never get here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(405, f"{scope['path']} allows only POST.", headers={"allow": "POST"})


def make_app(pool: PoolRouter) -> Starlette:
    """The application for one pool."""
    app = bare_app(pool)
    _add_public(app, pool)
    _add_admin(app, pool)
    return app


def bare_app(listener: Listener) -> Starlette:
    """The part that all control surfaces share."""
    app = Starlette()
    app.router.redirect_slashes = False  # a redirect without the last slash would go to the host that the client named
    _add_errors(app, listener)
    for path in (CHAT_PATH, COMPLETION_PATH):
        app.router.routes.append(Route(path.decode(), _OnlyPost()))

    async def healthz(_: Request) -> Response:
        return Response("ok", media_type="text/plain")  # while the process is alive

    add_route(app, "/healthz", healthz)
    return app


def add_route(app: Starlette, path: str, answer: Callable[[Request], Awaitable[Response]], *guards: Guard) -> None:
    """Answers GET on a path, in Starlette's notation, after all guards let the request pass."""

    async def guarded(request: Request) -> Response:
        for guard in guards:
            guard(request)
        return await answer(request)

    app.router.routes.append(Route(path, guarded, methods=["GET"]))


def json_response(document: Any) -> Response:
    """An answer with a document of plain values."""
    return Response(msgspec.json.encode(document), media_type="application/json")


def needs_key(listener: Listener) -> Guard:
    """The guard of a route for clients."""

    def key(request: Request) -> None:
        if listener.auth.tenant(dict(request.scope["headers"])) is None:
            raise _Unauthorized(NEEDS_KEY, "invalid_api_key")

    return key


def needs_admin(listener: Listener) -> Guard:
    """The guard of a route that shows traffic."""

    def admin(request: Request) -> None:
        if not listener.auth.is_admin(dict(request.scope["headers"])):
            raise _Unauthorized(listener.auth.admin_refusal, "admin_key")

    return admin


def needs_admin_with_keys(listener: Listener) -> Guard:
    """The guard of the metrics: with API keys, a tenant must not see the traffic of others."""

    def admin(request: Request) -> None:
        if listener.auth.enabled and not listener.auth.is_admin(dict(request.scope["headers"])):
            raise _Unauthorized(f"{listener.auth.admin_refusal} Or use the port listen.metricsPort.", "admin_key")

    return admin


def add_metrics(app: Starlette, page: Callable[[str], tuple[Any, str]], *guards: Guard) -> None:
    """Adds `/metrics`. page: makes content and content type for an Accept header."""

    async def metrics(request: Request) -> Response:
        content, kind = page(request.headers.get("accept", ""))
        return Response(content, media_type=kind)

    add_route(app, "/metrics", metrics, *guards)


def _add_errors(app: Starlette, listener: Listener) -> None:
    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and "endpoint" not in request.scope:
            return _no_route(request, listener)
        code = error.code if isinstance(error, _Unauthorized) else _CODES.get(error.status_code)
        return _error(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))

    async def request_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return Response(error.body(), status_code=error.status, media_type="application/json")

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestError, request_error)


def _no_route(request: Request, listener: Listener) -> Response:
    """Counts the path class: a label must not contain the client's own text."""
    path = request.url.path
    listener.metrics.not_found[path_class(path)] += 1
    body = unserved_body(path)
    if body is None:
        return _error(404, _NOT_FOUND, code="not_found")
    return Response(body, status_code=404, media_type="application/json")


def _add_public(app: Starlette, pool: PoolRouter) -> None:
    model = pool.config.model
    key = needs_key(pool)

    async def health(_: Request) -> Response:
        """200 while clients may send requests here: a replica is available, or requests may wait for one."""
        if pool.ready:
            return Response("ok", media_type="text/plain")
        return Response(_why_not(pool), status_code=503, media_type="text/plain")

    async def models(_: Request) -> Response:
        names = (model.name, *model.aliases, *model.adapters)
        return json_response({"object": "list", "data": [model_entry(name) for name in names]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in (model.name, *model.aliases, *model.adapters):
            raise unknown_model(name[:128], model.name)
        return json_response(model_entry(name))

    add_route(app, "/health", health)
    add_metrics(app, lambda accept: metrics_page(pool, accept), needs_admin_with_keys(pool))
    add_route(app, "/v1/models", models, key)
    add_route(app, "/v1/models/{name:path}", one_model, key)


def _add_admin(app: Starlette, pool: PoolRouter) -> None:
    admin = needs_admin(pool)

    async def status(request: Request) -> Response:
        return json_response(status_document(pool, decisions=_number(request, "decisions", default=10, least=0)))

    async def fleet(request: Request) -> Response:
        """The report for the operator, see plumage.fleet_report."""
        await _check_reader(pool, request)
        return json_response(fleet_report(pool))

    async def explain(request: Request) -> Response:
        record = pool.audit.find(request.path_params["request_id"])
        if record is None:
            size = pool.config.audit_size
            raise HTTPException(404, f"The request is not among the last {size} of this router.")
        return json_response(record.document())

    async def hottest_prefixes(request: Request) -> Response:
        number = _number(request, "number", default=20, least=1)
        return json_response({"pool": pool.config.pool, "hottest": pool.hot_prefixes.top(number)})

    add_route(app, "/plumage/v1/status", status, admin)
    add_route(app, FLEET_PATH, fleet)
    add_route(app, "/plumage/v1/explain/{request_id:path}", explain, admin)
    add_route(app, "/plumage/v1/hottest", hottest_prefixes, admin)


async def _check_reader(pool: PoolRouter, request: Request) -> None:
    try:
        await pool.auth.check_reader(dict(request.scope["headers"]))
    except CallerRefusedError as error:
        if error.status == 401:
            raise _Unauthorized(str(error), "admin_key") from error
        raise HTTPException(error.status, str(error)) from error


def _number(request: Request, name: str, *, default: int, least: int, most: int = 1000) -> int:
    """An integer of the query. RequestError if it is none, or out of bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else -1
    if not least <= number <= most:
        raise RequestError(400, f"{name}: must be an integer from {least} to {most}", code="invalid_type", param=name)
    return number


def _why_not(pool: PoolRouter) -> str:
    if not pool.keeps_alive:
        return "shutting down"
    return "no replica" if pool.membership.listed else "members not known yet"


def model_entry(name: str) -> dict[str, Any]:
    """An entry in OpenAI's list of models."""
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "plumage"}


def _error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = error_object(status, message, code=code, param=param)
    return Response(body, status_code=status, media_type="application/json", headers=headers)
