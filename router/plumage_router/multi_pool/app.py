"""The control surface for several pools: the routes of the port and of all pools together.

The routes of one pool (`/plumage/v1/…`, `/v1/plumage/fleet`) need `?pool=NAME`, and that pool's control surface answers
them. Here they answer with the names of the pools.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Response

from plumage.fleet_report import FLEET_PATH
from plumage_router.admin.app import add_metrics, bare_app, model_entry, needs_admin, needs_admin_with_keys, needs_key
from plumage_router.http.auth import Tenant
from plumage_router.multi_pool.dispatcher import PoolDispatcher
from plumage_router.multi_pool.metrics import multi_pool_metrics
from plumage_router.multi_pool.split import Route

__all__ = ["make_multi_pool_app"]


def make_multi_pool_app(dispatcher: PoolDispatcher) -> FastAPI:
    """Returns the application for one dispatcher."""
    app = bare_app(dispatcher)
    _add_public(app, dispatcher)
    _add_models(app, dispatcher)
    _add_admin(app, dispatcher)
    return app


def _add_public(app: FastAPI, dispatcher: PoolDispatcher) -> None:
    @app.get("/health", summary="200 while clients may send requests here: the members of all pools are known")
    async def health() -> Response:
        if dispatcher.ready:
            return Response(media_type="text/plain", content="ok")
        why = "members or their caches not known yet" if dispatcher.keeps_alive else "shutting down"
        return Response(status_code=503, media_type="text/plain", content=why)

    add_metrics(
        app, lambda accept: multi_pool_metrics(dispatcher, accept), dependencies=[needs_admin_with_keys(dispatcher)]
    )


def _add_models(app: FastAPI, dispatcher: PoolDispatcher) -> None:
    key = needs_key(dispatcher)

    @app.get("/v1/models")
    async def models(tenant: Tenant = key) -> dict[str, Any]:
        return {"object": "list", "data": [model_entry(name) for name in dispatcher.served(tenant)]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str, tenant: Tenant = key) -> dict[str, Any]:
        if name not in dispatcher.served(tenant):
            raise dispatcher.unknown(name, tenant)
        return model_entry(name)


def _add_admin(app: FastAPI, dispatcher: PoolDispatcher) -> None:
    async def pool_needed() -> None:
        pools = ", ".join(sorted(dispatcher.pools)) or "none"
        raise HTTPException(404, f"Name the pool: ?pool=NAME. The pools here are: {pools}.")

    guarded: dict[str, Any] = {"dependencies": [needs_admin(dispatcher)]}
    for path in ("/plumage/v1/explain/{rest:path}", "/plumage/v1/hottest", FLEET_PATH):
        app.add_api_route(path, pool_needed, methods=["GET"])

    @app.get("/plumage/v1/status", **guarded)
    async def status() -> dict[str, Any]:
        return {
            "gateway": dispatcher.title,
            "router": dispatcher.name,
            "serving": dispatcher.serving,
            "configError": dispatcher.config_error,
            "keysError": dispatcher.port_keys_error,
            "models": {name: _document(route) for name, route in sorted(dispatcher.routes.items())},
            "pools": sorted(dispatcher.pools),
            "broken": dispatcher.broken,
            "copiesInFlight": len(dispatcher.copies),
            "inFlight": {name: len(pool.in_flight) for name, pool in sorted(dispatcher.pools.items())},
            "connections": len(dispatcher.connections),
        }


def _document(route: Route) -> dict[str, Any]:
    mirror = {"pool": route.mirror, "percent": route.percent} if route.mirror else None
    return {"pools": dict(route.shares), "fallback": route.fallback or None, "requestMirror": mirror}
