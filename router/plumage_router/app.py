"""The control surface: health, metrics, models, status and explanations, with FastAPI behind the bridge.

Errors have OpenAI's form here too. What tells about traffic (`/plumage/v1/…`) needs the admin key; no key, no answer.
The operator's figures (`/v1/plumage/fleet`) are told to the callers that are configured as well.
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

from plumage.errors import RefusedError
from plumage.fleet_report import FLEET_PATH
from plumage_router.entrance import NEEDS_KEY, Entrance
from plumage_router.errors import RequestError, error_object, unknown_model
from plumage_router.gateway import Gateway
from plumage_router.paths import path_class, unserved_body
from plumage_router.prompt import CHAT_PATH, COMPLETION_PATH
from plumage_router.report import fleet_report
from plumage_router.status import metrics_page, status_document

__all__ = ["add_metrics", "bare_app", "make_app", "model_entry", "need_admin", "need_admin_with_keys", "need_key"]

CREATED = 1_700_000_000  # the models' `created`: OpenAI's clients want a number, and the true one is not known here


_NOTHING = (
    "There is nothing at this path. Served are POST /v1/chat/completions, POST /v1/completions and GET /v1/models."
)
_CODES = {404: "not_found", 405: "method_not_allowed"}


class _Unauthorized(HTTPException):
    """A key is missing or unknown. code: which kind of key, as completions name it."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(401, message, headers={"www-authenticate": "Bearer"})
        self.code = code


class _ByPostAlone:
    """Stands at a completion's path, whose POSTs never get here, for all other methods."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(405, f"{scope['path']} takes POST alone.", headers={"allow": "POST"})


def make_app(gateway: Gateway) -> FastAPI:
    """The application for one gateway."""
    app = bare_app(gateway)
    _add_public(app, gateway)
    _add_admin(app, gateway)
    return app


def bare_app(entrance: Entrance) -> FastAPI:
    """What every control surface begins with."""
    # A redirect to the path without its last slash would go to whatever host the client named.
    app = FastAPI(title="Plumage router", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_errors(app, entrance)
    for path in (CHAT_PATH, COMPLETION_PATH):
        app.router.routes.append(Route(path.decode(), _ByPostAlone()))

    @app.get("/healthz", summary="200 while the process works")
    async def healthz() -> Response:
        return Response(media_type="text/plain", content="ok")

    return app


def need_key(entrance: Entrance) -> Any:
    """Of a route that clients may ask."""

    def key(request: Request) -> None:
        if entrance.auth.tenant(dict(request.scope["headers"])) is None:
            raise _Unauthorized(NEEDS_KEY, "invalid_api_key")

    return Depends(key)


def need_admin(entrance: Entrance) -> Any:
    """Of a route that tells about traffic."""

    def admin(request: Request) -> None:
        if not entrance.auth.is_admin(dict(request.scope["headers"])):
            raise _Unauthorized(entrance.auth.admin_refusal, "admin_key")

    return Depends(admin)


def need_admin_with_keys(entrance: Entrance) -> Any:
    """Of the metrics: where tenants have keys, one of them must not see what the others do."""

    def admin(request: Request) -> None:
        if entrance.auth.enabled and not entrance.auth.is_admin(dict(request.scope["headers"])):
            raise _Unauthorized(f"{entrance.auth.admin_refusal} Or ask the port listen.metricsPort.", "admin_key")

    return Depends(admin)


def add_metrics(app: FastAPI, page: Callable[[str], tuple[Any, str]], **more: Any) -> None:
    """`/metrics`. page: of an Accept header, the content and its kind."""

    @app.get("/metrics", summary="Prometheus metrics; behind a gateway `pool` names a pool", **more)
    async def metrics(request: Request) -> Response:
        content, kind = page(request.headers.get("accept", ""))
        return Response(content, media_type=kind)


def _add_errors(app: FastAPI, entrance: Entrance) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def plain(request: Request, error: StarletteHTTPException) -> Response:
        if error.status_code == 404 and "endpoint" not in request.scope:
            return _no_route(request, entrance)
        code = error.code if isinstance(error, _Unauthorized) else _CODES.get(error.status_code)
        return _error(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))

    @app.exception_handler(RequestError)
    async def told(request: Request, error: RequestError) -> Response:
        return Response(error.body(), status_code=error.status, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"][1:]))
        return _error(400, f"{param}: {first['msg']}", code="invalid_type", param=param)


def _no_route(request: Request, entrance: Entrance) -> Response:
    """Counted by class: the path itself is the client's word."""
    path = request.url.path
    entrance.metrics.not_found[path_class(path)] += 1
    body = unserved_body(path)
    if body is None:
        return _error(404, _NOTHING, code="not_found")
    return Response(body, status_code=404, media_type="application/json")


def _add_public(app: FastAPI, gateway: Gateway) -> None:
    model = gateway.config.model

    key = need_key(gateway)

    @app.get(
        "/health", summary="200 while clients may be sent here: members known, a replica to choose or room to wait"
    )
    async def health() -> Response:
        ready = gateway.ready
        return Response(
            status_code=200 if ready else 503, media_type="text/plain", content="ok" if ready else _why_not(gateway)
        )

    add_metrics(app, lambda accept: metrics_page(gateway, accept), dependencies=[need_admin_with_keys(gateway)])

    @app.get("/v1/models", dependencies=[key])
    async def models() -> dict[str, Any]:
        names = (model.name, *model.aliases, *model.adapters)
        return {"object": "list", "data": [model_entry(name) for name in names]}

    @app.get("/v1/models/{name:path}", dependencies=[key])
    async def one_model(name: str) -> dict[str, Any]:
        if name not in (model.name, *model.aliases, *model.adapters):
            raise unknown_model(name[:128], model.name)
        return model_entry(name)


def _add_admin(app: FastAPI, gateway: Gateway) -> None:
    async def reader(request: Request) -> None:
        try:
            await gateway.auth.check_reader(dict(request.scope["headers"]))
        except RefusedError as error:
            if error.status == 401:
                raise _Unauthorized(str(error), "admin_key") from error
            raise HTTPException(error.status, str(error)) from error

    guarded: dict[str, Any] = {"dependencies": [need_admin(gateway)]}

    @app.get("/plumage/v1/status", **guarded)
    async def status(decisions: Annotated[int, Query(ge=0, le=1000)] = 10) -> dict[str, Any]:
        return status_document(gateway, decisions=decisions)

    @app.get(FLEET_PATH, dependencies=[Depends(reader)], summary="Figures for the operator, see plumage.fleet_report")
    async def fleet() -> Response:
        return Response(msgspec.json.encode(fleet_report(gateway)), media_type="application/json")

    @app.get("/plumage/v1/explain/{request_id:path}", **guarded)
    async def explain(request_id: str) -> dict[str, Any]:
        record = gateway.audit.find(request_id)
        if record is None:
            kept = gateway.config.audit_size
            raise HTTPException(404, f"The request is not among the last {kept} that this router saw.")
        return record.document()

    @app.get("/plumage/v1/hottest", **guarded)
    async def hottest(number: Annotated[int, Query(ge=1, le=1000)] = 20) -> dict[str, Any]:
        return {"pool": gateway.config.pool, "hottest": gateway.hottest.top(number)}


def _why_not(gateway: Gateway) -> str:
    if not gateway.keeps_alive:
        return "shutting down"
    return "no replica" if gateway.membership.listed else "members not known yet"


def model_entry(name: str) -> dict[str, Any]:
    """Of OpenAI's list of models."""
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "plumage"}


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
