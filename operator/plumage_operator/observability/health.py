"""Whether the operator still works: heartbeats of its loops, and the HTTP pages for probes and metrics.

kopf's watches may freeze or die while the process lives on (nolar/kopf#1120, #1276). A process that only answers HTTP
would look healthy for ever. So each loop beats, and the liveness probe fails when one falls silent.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from plumage.prometheus.exposition import CONTENT_TYPE

__all__ = ["Heartbeats", "health_app", "metrics_app", "serve"]


class Heartbeats:
    """When each loop beat last.

    clock: monotonic seconds. Each name has its own longest silence, in seconds, from when it is expected.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._beats: dict[str, tuple[float, float]] = {}

    def expect(self, name: str, silence: float) -> None:
        """From now on `name` must beat at least every `silence` seconds."""
        self._beats[name] = (self._clock(), silence)

    def beat(self, name: str) -> None:
        """`name` is alive."""
        _, silence = self._beats[name]
        self._beats[name] = (self._clock(), silence)

    def stale(self) -> list[str]:
        """A line for each name that has been silent for too long."""
        now = self._clock()
        return [
            f"{name}: no heartbeat for {now - last:.0f} s, and {silence:.0f} s are allowed"
            for name, (last, silence) in self._beats.items()
            if now - last > silence
        ]


_CLOSES = 2.0  # seconds that a scrape in flight may take at shutdown


def health_app(heartbeats: Heartbeats, not_ready_reason: Callable[[], str] = lambda: "") -> web.Application:
    """`/healthz` and `/readyz`.

    `/healthz`: 200, or 503 with the names that fell silent.
    `/readyz`: 200, or 503 with what the operator lacks. An operator that waits for the Lease is as ready as the active
    one.
    """

    async def healthz(_: web.Request) -> web.Response:
        stale = heartbeats.stale()
        return web.Response(text="\n".join(stale) or "ok", status=503 if stale else 200)

    async def readyz(_: web.Request) -> web.Response:
        reason = not_ready_reason()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

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
    """Listens on all addresses. The caller cleans up the runner."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSES)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
