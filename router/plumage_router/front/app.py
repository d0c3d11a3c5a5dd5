"""The control surface of a front: what concerns the port, and all pools together.

What tells about one pool (`/plumage/v1/…`, `/v1/plumage/fleet`) is asked with `?pool=NAME` and answered by that pool's
own control surface; here it is only said which pools there are.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Response

from plumage.fleet_report import FLEET_PATH
from plumage_router.app import add_metrics, bare_app, model_entry, need_admin, need_admin_with_keys, need_key
from plumage_router.front.host import Front
from plumage_router.front.metrics import front_metrics

__all__ = ["make_front_app"]


def make_front_app(front: Front) -> FastAPI:
    """The application for one front."""
    app = bare_app(front)
    _add_public(app, front)
    _add_models(app, front)
    _add_admin(app, front)
    return app


def _add_public(app: FastAPI, front: Front) -> None:
    @app.get("/health", summary="200 while clients may be sent here: the members of all pools are known")
    async def health() -> Response:
        if front.ready:
            return Response(media_type="text/plain", content="ok")
        why = "members not known yet" if front.keeps_alive else "shutting down"
        return Response(status_code=503, media_type="text/plain", content=why)

    add_metrics(app, lambda accept: front_metrics(front, accept), dependencies=[need_admin_with_keys(front)])


def _add_models(app: FastAPI, front: Front) -> None:
    key = need_key(front)

    @app.get("/v1/models", dependencies=[key])
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model_entry(name) for name in front.served]}

    @app.get("/v1/models/{name:path}", dependencies=[key])
    async def one_model(name: str) -> dict[str, Any]:
        if name not in front.served:
            raise front.unknown(name)
        return model_entry(name)


def _add_admin(app: FastAPI, front: Front) -> None:
    async def which() -> None:
        pools = ", ".join(sorted(front.gateways)) or "none"
        raise HTTPException(404, f"It is asked of one pool: ?pool=NAME, of those that are served here: {pools}.")

    guarded: dict[str, Any] = {"dependencies": [need_admin(front)]}
    for path in ("/plumage/v1/explain/{rest:path}", "/plumage/v1/hottest", FLEET_PATH):
        app.add_api_route(path, which, methods=["GET"])

    @app.get("/plumage/v1/status", **guarded)
    async def status() -> dict[str, Any]:
        return {
            "gateway": front.title,
            "router": front.name,
            "serving": front.serving,
            "configError": front.config_error,
            "keysError": front.auth.error,
            "models": dict(sorted(front.names.items())),
            "pools": sorted(front.gateways),
            "broken": front.broken,
            "inFlight": {pool: len(gateway.flights) for pool, gateway in sorted(front.gateways.items())},
            "connections": len(front.connections),
        }
