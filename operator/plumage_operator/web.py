"""What the operator answers over HTTP: whether it lives, and its figures."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from plumage.exposition import CONTENT_TYPE
from plumage_operator.liveness import Heartbeats

__all__ = ["health_app", "metrics_app", "serve"]

_CLOSES = 2.0  # seconds that a scrape in flight may take at the end


def health_app(heartbeats: Heartbeats, lacking: Callable[[], str] = lambda: "") -> web.Application:
    """`/healthz`: 200, or 503 with what fell silent. `/readyz`: 200, or 503 with what the operator lacks here. One that
    waits for the Lease is as ready as the active one."""

    async def healthz(_: web.Request) -> web.Response:
        stale = heartbeats.stale()
        return web.Response(text="\n".join(stale) or "ok", status=503 if stale else 200)

    async def readyz(_: web.Request) -> web.Response:
        lack = lacking()
        return web.Response(text=lack or "ok", status=503 if lack else 200)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def metrics_app(page: Callable[[], str]) -> web.Application:
    """`/metrics`."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Listen on all addresses; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSES)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
