"""The agent's HTTP routes.

| route                   | answer                                                                    | for     |
|-------------------------|---------------------------------------------------------------------------|---------|
| GET /healthz            | 200 while the process works                                               | all     |
| GET /readyz             | 200 while the engine is warm since its start, healthy, and does not drain | all     |
| GET /metrics            | Prometheus metrics of events, index and directory                         | all     |
| GET /v1/plumage/stats   | figures for the operator and people                                       | callers |
| GET /v1/plumage/hottest | token ids for a peer that warms up, `?tokens=N` of them at most           | peers   |
| POST /v1/plumage/drain  | `{"timeoutSeconds": 30}` → 200 with nothing in flight, 504 after the time | own     |

`access` says who may use which. `stats` answers `plumage.fleet_report`'s AgentReport, with figures for people. Errors
are objects as OpenAI's: `{"error": {"message", "type"}}`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from plumage.prometheus.exposition import CONTENT_TYPE
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.access import Access, Audience
from plumage_engine.agent.http.metrics_page import metrics_page
from plumage_engine.agent.http.stats import agent_stats, report_of

__all__ = ["make_app"]

MOST_BODY = 4096
MOST_TOKENS = 10_000_000
LONGEST_DRAIN = 24 * 3600.0
DEFAULT_DRAIN = 30.0

Handler = Callable[[Request], Awaitable[Response]]


def make_app(agent: Agent, access: Access) -> Starlette:
    """The application of one agent."""
    watch = agent.watch

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        ready = await watch.check_ready()
        answer = {"state": watch.state.name.capitalize(), "why": watch.not_ready_reason}
        return JSONResponse(answer, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(metrics_page(agent), media_type=CONTENT_TYPE)

    async def stats(_: Request) -> Response:
        return JSONResponse({**agent_stats(agent), **msgspec.to_builtins(await report_of(agent))})

    async def hottest(request: Request) -> Response:
        found = agent.hottest(_tokens(request))
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def drain(request: Request) -> Response:
        result = await watch.drain(_seconds(await _body(request)))
        return JSONResponse(result, 200 if result["drained"] else 504)

    guarded: tuple[tuple[str, Handler, str, Audience], ...] = (
        ("stats", stats, "GET", "callers"),
        ("hottest", hottest, "GET", "peers"),
        ("drain", drain, "POST", "own"),
    )
    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    routes += [
        Route(f"/v1/plumage/{name}", _guard(access, work, audience), methods=[method])
        for name, work, method, audience in guarded
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _explain})
    app.router.redirect_slashes = False  # a redirect would go to whatever host the client named
    return app


def _guard(access: Access, work: Handler, audience: Audience) -> Handler:
    """`work`, for requests that `access` lets in."""

    async def guarded(request: Request) -> Response:
        await access.check(request.headers.get("authorization", ""), audience)
        return await work(request)

    return guarded


def _tokens(request: Request) -> int:
    given = request.query_params.get("tokens", "100000")
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise HTTPException(400, f"tokens must be a whole number from 0 to {MOST_TOKENS}")
    return min(int(given), MOST_TOKENS)


async def _body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST_BODY:
            raise HTTPException(413, f"the body must not be larger than {MOST_BODY} bytes")
    return data


def _seconds(body: bytes) -> float:
    try:
        given = json.loads(body) if body.strip() else {}
        seconds = given.get("timeoutSeconds", DEFAULT_DRAIN)
    except (ValueError, AttributeError) as error:
        raise HTTPException(400, 'the body must be a JSON object such as {"timeoutSeconds": 30}') from error
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_DRAIN:
        raise HTTPException(400, f"timeoutSeconds must be a number from 0 to {LONGEST_DRAIN:g}")
    return float(seconds)


async def _explain(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {401: "authentication_error", 403: "permission_error", 503: "service_unavailable"}
    kind = kinds.get(error.status_code, "invalid_request_error")
    return JSONResponse({"error": {"message": error.detail, "type": kind}}, error.status_code)
