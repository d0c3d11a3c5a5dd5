"""The control surface as a FastAPI application: health, metrics, models, status and explanations.

Errors have OpenAI's format. `/plumage/v1/…` shows traffic and needs the admin key. `/v1/plumage/fleet` is the
operator's report; the configured callers may read it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from plumage.errors import CallerRefusedError
from plumage.fleet_report import FLEET_PATH
from plumage_router.admin.fleet_report import fleet_report
from plumage_router.admin.status import metrics_page, status_document
from plumage_router.http.auth import Tenant
from plumage_router.http.errors import RequestError, error_object, unknown_model
from plumage_router.http.listener import NEEDS_KEY, Listener
from plumage_router.http.paths import ENGINE_PATHS, path_class, unserved_body
from plumage_router.pool_router import PoolRouter

__all__ = [
    "add_metrics",
    "bare_app",
    "make_app",
    "model_entry",
    "needs_admin",
    "needs_admin_with_keys",
    "needs_key",
]

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


def make_app(pool: PoolRouter) -> FastAPI:
    """The application for one pool."""
    app = bare_app(pool)
    _add_public(app, pool)
    _add_admin(app, pool)
    return app


def bare_app(listener: Listener) -> FastAPI:
    """The part that all control surfaces share."""
    # A redirect without the last slash would go to the host that the client named.
    app = FastAPI(title="Plumage router", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_errors(app, listener)
    for path in sorted(ENGINE_PATHS):
        app.router.routes.append(Route(path.decode(), _OnlyPost()))

    @app.get("/healthz", summary="200 while the process is alive")
    async def healthz() -> Response:
        return Response(media_type="text/plain", content="ok")

    return app


def needs_key(listener: Listener) -> Any:
    """The dependency of a route for clients. Its value is the key's tenant."""

    def key(request: Request) -> Tenant:
        tenant = listener.auth.tenant(dict(request.scope["headers"]))
        if tenant is None:
            raise _Unauthorized(NEEDS_KEY, "invalid_api_key")
        return tenant

    return Depends(key)


def needs_admin(listener: Listener) -> Any:
    """The dependency of a route that shows traffic."""

    def admin(request: Request) -> None:
        if not listener.auth.is_admin(dict(request.scope["headers"])):
            raise _Unauthorized(listener.auth.admin_refusal, "admin_key")

    return Depends(admin)


def needs_admin_with_keys(listener: Listener) -> Any:
    """The dependency of the metrics: with API keys, a tenant must not see the traffic of others."""

    def admin(request: Request) -> None:
        if listener.auth.enabled and not listener.auth.is_admin(dict(request.scope["headers"])):
            raise _Unauthorized(f"{listener.auth.admin_refusal} Or use the port listen.metricsPort.", "admin_key")

    return Depends(admin)


def add_metrics(app: FastAPI, page: Callable[[str], tuple[Any, str]], **more: Any) -> None:
    """Adds `/metrics`. page: makes content and content type for an Accept header."""

    @app.get("/metrics", summary="Prometheus metrics; behind a gateway `pool` names a pool", **more)
    async def metrics(request: Request) -> Response:
        content, kind = page(request.headers.get("accept", ""))
        return Response(content, media_type=kind)


def _add_errors(app: FastAPI, listener: Listener) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: StarletteHTTPException) -> Response:
        if error.status_code == 404 and "endpoint" not in request.scope:
            return _no_route(request, listener)
        code = error.code if isinstance(error, _Unauthorized) else _CODES.get(error.status_code)
        return _error(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))

    @app.exception_handler(RequestError)
    async def request_error(request: Request, error: RequestError) -> Response:
        return Response(error.body(), status_code=error.status, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"][1:]))
        return _error(400, f"{param}: {first['msg']}", code="invalid_type", param=param)


def _no_route(request: Request, listener: Listener) -> Response:
    """Counts the path class: a label must not contain the client's own text."""
    path = request.url.path
    listener.metrics.not_found[path_class(path)] += 1
    body = unserved_body(path)
    if body is None:
        return _error(404, _NOT_FOUND, code="not_found")
    return Response(body, status_code=404, media_type="application/json")


def _add_public(app: FastAPI, pool: PoolRouter) -> None:
    model = pool.config.model

    key = needs_key(pool)

    @app.get(
        "/health",
        summary="200 while clients may send requests here: a replica is available, or requests may wait for one",
    )
    async def health() -> Response:
        ready = pool.ready
        return Response(
            status_code=200 if ready else 503, media_type="text/plain", content="ok" if ready else _why_not(pool)
        )

    add_metrics(app, lambda accept: metrics_page(pool, accept), dependencies=[needs_admin_with_keys(pool)])

    def names(tenant: Tenant) -> list[str]:
        served = (model.name, *model.aliases, *model.adapters)
        return [name for name in served if pool.quotas.allows(tenant.name, name)]

    @app.get("/v1/models")
    async def models(tenant: Tenant = key) -> dict[str, Any]:
        return {"object": "list", "data": [model_entry(name) for name in names(tenant)]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str, tenant: Tenant = key) -> dict[str, Any]:
        if name not in names(tenant):
            raise unknown_model(name[:128], model.name)
        return model_entry(name)


def _add_admin(app: FastAPI, pool: PoolRouter) -> None:
    async def reader(request: Request) -> None:
        try:
            checking = pool.auth.check_reader(dict(request.scope["headers"]))
            if checking is not None:
                await checking
        except CallerRefusedError as error:
            if error.status == 401:
                raise _Unauthorized(str(error), "admin_key") from error
            raise HTTPException(error.status, str(error)) from error

    guarded: dict[str, Any] = {"dependencies": [needs_admin(pool)]}

    @app.get("/plumage/v1/status", **guarded)
    async def status(decisions: Annotated[int, Query(ge=0, le=1000)] = 10) -> dict[str, Any]:
        return status_document(pool, decisions=decisions)

    @app.get(
        FLEET_PATH, dependencies=[Depends(reader)], summary="The report for the operator, see plumage.fleet_report"
    )
    async def fleet() -> Response:
        return Response(msgspec.json.encode(fleet_report(pool)), media_type="application/json")

    @app.get("/plumage/v1/explain/{request_id:path}", **guarded)
    async def explain(request_id: str) -> dict[str, Any]:
        record = pool.decisions.audit.find(request_id)
        if record is None:
            size = pool.config.audit_size
            raise HTTPException(404, f"The request is not among the last {size} of this router.")
        return record.document()

    @app.get("/plumage/v1/hottest", **guarded)
    async def hottest_prefixes(number: Annotated[int, Query(ge=1, le=1000)] = 20) -> dict[str, Any]:
        return {"pool": pool.config.pool, "hottest": pool.decisions.hot_prefixes.top(number)}


def _why_not(pool: PoolRouter) -> str:
    if not pool.keeps_alive:
        return "shutting down"
    if not pool.membership.listed:
        return "members not known yet"
    return "no replica" if pool.informed else "the replicas' caches are being loaded"


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
