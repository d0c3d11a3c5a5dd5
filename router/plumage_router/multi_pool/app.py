"""The control surface for several pools: the routes of the port and of all pools together.

The routes of one pool (`/plumage/v1/…`, `/v1/plumage/fleet`) need `?pool=NAME`, and that pool's control surface answers
them. Here they answer with the names of the pools.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from plumage.fleet_report import FLEET_PATH
from plumage_router.admin.app import (
    add_metrics,
    add_route,
    bare_app,
    json_response,
    model_entry,
    needs_admin,
    needs_admin_with_keys,
    needs_key,
)
from plumage_router.multi_pool.dispatcher import PoolDispatcher
from plumage_router.multi_pool.metrics import multi_pool_metrics

__all__ = ["make_multi_pool_app"]


def make_multi_pool_app(dispatcher: PoolDispatcher) -> Starlette:
    """The application for one dispatcher."""
    app = bare_app(dispatcher)
    _add_public(app, dispatcher)
    _add_models(app, dispatcher)
    _add_admin(app, dispatcher)
    return app


def _add_public(app: Starlette, dispatcher: PoolDispatcher) -> None:
    async def health(_: Request) -> Response:
        """200 while clients may send requests here: the members of all pools are known."""
        if dispatcher.ready:
            return Response("ok", media_type="text/plain")
        why = "members not known yet" if dispatcher.keeps_alive else "shutting down"
        return Response(why, status_code=503, media_type="text/plain")

    add_route(app, "/health", health)
    add_metrics(app, lambda accept: multi_pool_metrics(dispatcher, accept), needs_admin_with_keys(dispatcher))


def _add_models(app: Starlette, dispatcher: PoolDispatcher) -> None:
    key = needs_key(dispatcher)

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [model_entry(name) for name in dispatcher.served]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in dispatcher.served:
            raise dispatcher.unknown(name)
        return json_response(model_entry(name))

    add_route(app, "/v1/models", models, key)
    add_route(app, "/v1/models/{name:path}", one_model, key)


def _add_admin(app: Starlette, dispatcher: PoolDispatcher) -> None:
    async def pool_needed(_: Request) -> Response:
        pools = ", ".join(sorted(dispatcher.pools)) or "none"
        raise HTTPException(404, f"Name the pool: ?pool=NAME. The pools here are: {pools}.")

    async def status(_: Request) -> Response:
        return json_response(
            {
                "gateway": dispatcher.title,
                "router": dispatcher.name,
                "serving": dispatcher.serving,
                "configError": dispatcher.config_error,
                "keysError": dispatcher.auth.error,
                "models": dict(sorted(dispatcher.names.items())),
                "pools": sorted(dispatcher.pools),
                "broken": dispatcher.broken,
                "inFlight": {name: len(pool.in_flight) for name, pool in sorted(dispatcher.pools.items())},
                "connections": len(dispatcher.connections),
            }
        )

    for path in ("/plumage/v1/explain/{rest:path}", "/plumage/v1/hottest", FLEET_PATH):
        add_route(app, path, pool_needed)
    add_route(app, "/plumage/v1/status", status, needs_admin(dispatcher))
