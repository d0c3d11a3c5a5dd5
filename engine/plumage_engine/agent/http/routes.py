"""The agent's HTTP surface.

| route                         | answer                                                                    | for   |
|-------------------------------|---------------------------------------------------------------------------|-------|
| GET /healthz                  | 200 while the process works                                               | all   |
| GET /readyz                   | 200 once this life of the engine is warmed, while it is well, not drained | all   |
| GET /metrics                  | Prometheus metrics: events, index, what the directory said                | all   |
| GET /v1/plumage/stats         | figures for the operator and people                                       | calls |
| GET /v1/plumage/hottest       | token ids for a warming peer, at most `?tokens=N` of them                 | peers |
| POST /v1/plumage/drain        | `{"timeoutSeconds": 30}` → 200 when nothing is in flight, 504 at the time | own   |

Where the configuration names a token file its token opens every route, and "own" ones nothing else does. In a cluster
the service accounts among `callers` are let in to the others by their projected tokens, to "peers" ones unless they are
among `figuresOnly`: the operator has one token for all pools of a cluster, which must not open prompts (0158). What
`stats` says is `plumage.fleet_report`'s AgentReport, with figures for people. Errors
are objects as OpenAI's: `{"error": {"message", "type"}}`.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from plumage.errors import RefusedError
from plumage.exposition import CONTENT_TYPE
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.metrics_page import metrics_page
from plumage_engine.agent.http.replica_report import report_of

__all__ = ["make_app"]

MOST_BODY = 4096
MOST_TOKENS = 10_000_000
LONGEST_DRAIN = 24 * 3600.0
DEFAULT_DRAIN = 30.0

Handler = Callable[[Request], Awaitable[Response]]
Who = Literal["calls", "peers", "own"]


def make_app(agent: Agent) -> Starlette:
    """The application of one agent."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        ready = await agent.serves()
        return JSONResponse({"state": agent.state.name.capitalize(), "why": agent.why}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(metrics_page(agent), media_type=CONTENT_TYPE)

    async def stats(_: Request) -> Response:
        return JSONResponse({**agent.stats(), **msgspec.to_builtins(await report_of(agent))})

    async def hottest(request: Request) -> Response:
        found = agent.hottest(_tokens(request))
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def drain(request: Request) -> Response:
        result = await agent.drain(_seconds(await _body(request)))
        return JSONResponse(result, 200 if result["drained"] else 504)

    guarded: tuple[tuple[str, Handler, str, Who], ...] = (
        ("stats", stats, "GET", "calls"),
        ("hottest", hottest, "GET", "peers"),
        ("drain", drain, "POST", "own"),
    )
    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    routes += [
        Route(f"/v1/plumage/{name}", _guard(agent, work, who), methods=[how]) for name, work, how, who in guarded
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _explain})
    app.router.redirect_slashes = False  # a redirect would go to whatever host the client named
    return app


def _guard(agent: Agent, work: Handler, who: Who) -> Handler:
    """`work` for those who have the token, and for the callers that may."""
    if agent.token is None:
        return work
    expected = b"Bearer " + agent.token.get_secret_value().encode()

    async def guarded(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("latin-1"), expected):
            await _check_caller(agent, given, who)
        return await work(request)

    return guarded


async def _check_caller(agent: Agent, given: str, who: Who) -> None:
    if agent.callers is None or who == "own":
        raise HTTPException(401, "this route needs the agent's bearer token")
    try:
        caller = await agent.callers.check(given)
    except RefusedError as error:
        raise HTTPException(error.status, str(error)) from error
    if who == "peers" and caller in agent.figures_only:
        raise HTTPException(403, f"{caller} may read figures here, and no prompts")


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
