"""The simulated engine as a server: APIs of OpenAI and Anthropic, vLLM's metrics and health, and the fleet's routes.

In `dev_mode` also vLLM's `POST /reset_prefix_cache?reset_running_requests=&reset_external=`.

`/v1…`, `/tokenize` and `/detokenize` want the API key where one is set, as vLLM with our plugin does. `/v1/plumage/…`
wants its own token; `/health` and `/metrics` are open, as in vLLM. The fleet's routes:

- `GET snapshot`: the cached blocks with token ids, in msgpack.
- `GET stats`, `POST drain`.
- `GET tables`, `POST tables`: the learned tables of the stop policy, `LearnedTable` as JSON; 404 where it shares none.
- `POST feather`: another batching policy, in the form of the configuration.
- `POST adapters`: the LoRA adapters to serve.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.configuration import read_secret
from plumage_engine.simulator.engine.settings import engine_settings
from plumage_engine.simulator.events.publisher import EventPublisher
from plumage_engine.simulator.http.adapters import AdapterRoute, SimulatedAdapters
from plumage_engine.simulator.http.audio import Audio
from plumage_engine.simulator.http.completions import Completions, Receive, Scope, Send, respond
from plumage_engine.simulator.http.learned_tables import Tables
from plumage_engine.simulator.http.messages import CountTokens, Messages
from plumage_engine.simulator.http.prompts import Prompts
from plumage_engine.simulator.http.protocol import ApiError
from plumage_engine.simulator.http.responses import Responses
from plumage_engine.simulator.http.stored_responses import StoredResponses
from plumage_engine.simulator.http.tokens import Tokens
from plumage_engine.simulator.metrics import Metrics
from plumage_engine.simulator.runner import Runner

__all__ = ["make_app"]

log = logging.getLogger(__name__)

_FLEET = "/v1/plumage/"
_GUARDED = ("/v1", "/v2", "/inference", "/cohere", "/tokenize", "/detokenize")
"""vLLM's GUARDED_PREFIX, and what else is here of which our plugin asks the key in vLLM."""
_LONGEST_DRAIN = 3600.0


class _Guard:
    """Lets a request through if it has the token of its path. For `/v1` it does what vLLM 0.32 does
    (`entrypoints/serve/middleware/authenticate.py`): no key for OPTIONS, any case of `Bearer`, and a plain refusal."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], api_key: SecretStr | None, token: SecretStr | None
    ) -> None:
        self._app = app
        self._api_key = api_key
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(_FLEET):
            if _has_secret(scope, self._token):
                await self._app(scope, receive, send)
            else:
                error = ApiError(401, "missing or wrong bearer token", kind="Unauthorized")
                await respond(send, 401, error.body(), (b"www-authenticate", b"Bearer"))
        elif (
            scope["path"].startswith(_GUARDED)
            and scope["method"] != "OPTIONS"
            and not _has_secret(scope, self._api_key)
        ):
            await respond(send, 401, b'{"error":"Unauthorized"}')
        else:
            await self._app(scope, receive, send)


def _has_secret(scope: Scope, wanted: SecretStr | None) -> bool:
    """Whether the request has this secret; true where none is wanted."""
    if wanted is None:
        return True
    given = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, secret = given.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(secret, wanted.get_secret_value().encode())


class _Fleet:
    """The routes of the agent beside the engine."""

    def __init__(self, runner: Runner, max_model_len: int) -> None:
        self._runner = runner
        self._max_model_len = max_model_len

    async def snapshot(self, request: Request) -> Response:
        runner = self._runner
        return Response(runner.table.encode(runner.publisher.next_sequence), media_type="application/msgpack")

    async def stats(self, request: Request) -> Response:
        runner, engine = self._runner, self._runner.engine
        load, counters = engine.load(), engine.counters
        return _json(
            {
                "running": load.running,
                "waiting": load.waiting,
                "kvUsage": load.kv_usage,
                "prefillTokens": load.prefill_tokens,
                "cachedBlocks": engine.pool.cached,
                "cacheBlocks": engine.settings.cache_blocks,
                "hostBlocks": engine.settings.host_blocks,
                "blockSize": engine.settings.block_size,
                "maxModelLen": self._max_model_len,
                "queryTokens": counters.query_tokens,
                "hitTokens": counters.hit_tokens,
                "hostHitTokens": counters.host_hit_tokens,
                "generatedTokens": counters.generated_tokens,
                "preemptions": counters.preempted,
                "steps": counters.steps,
                "secondsSinceStep": time.monotonic() - runner.last_step,
                "nextSequence": runner.publisher.next_sequence,
                "draining": runner.draining,
            }
        )

    async def drain(self, request: Request) -> Response:
        body = await request.body()
        try:
            seconds = float(orjson.loads(body)["timeoutSeconds"]) if body else 60.0
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise ApiError(400, 'the body must be {"timeoutSeconds": number}', param="timeoutSeconds") from None
        if not 0 <= seconds <= _LONGEST_DRAIN:
            raise ApiError(400, f"timeoutSeconds must be within 0 and {_LONGEST_DRAIN:g}", param="timeoutSeconds")
        drained = await self._runner.drained(seconds)
        return _json({"drained": drained, "inFlight": len(self._runner)})


def make_app(config: SimulatorConfig) -> _Guard:
    """The application; it binds the event sockets and steps the engine while it is served. ConfigurationError for what
    can't work together."""
    folder = ModelFolder.load(resolve(config.model_folder))
    adapters = SimulatedAdapters(config.adapters)
    prompts = Prompts(config, folder, adapters)
    metrics = Metrics(config.model, len(config.ignored), adapters=adapters.sources)
    settings = engine_settings(config)
    publisher = EventPublisher(
        config.events_endpoint, config.replay_endpoint, topic=config.events_topic, kept=config.events_kept
    )
    runner = Runner(settings, seed=config.seed, publisher=publisher, metrics=metrics)
    metrics.engine = runner.engine

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loop = asyncio.create_task(runner.run(), name="engine")
        loop.add_done_callback(_end_with_the_engine)
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.wait([loop])
            prompts.close()
            publisher.close()

    limits: dict[str, Any] = {
        "max_in_flight": config.max_in_flight,
        "max_body_bytes": config.max_body_bytes,
        "force_usage": config.enable_force_include_usage,
    }
    fleet = _Fleet(runner, prompts.max_model_len)
    stored = StoredResponses() if config.store_responses else None
    by_id = StoredResponses() if stored is None else stored
    tables, tokens = Tables(runner.engine, config), Tokens(prompts, config.max_body_bytes)
    routes = [
        Route("/v1/chat/completions", Completions(runner, prompts, chat=True, **limits), methods=["POST"]),
        Route("/v1/completions", Completions(runner, prompts, chat=False, **limits), methods=["POST"]),
        Route("/v1/messages", Messages(runner, prompts, chat=True, **limits), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokens(prompts, config.max_body_bytes).count, methods=["POST"]),
        Route("/v1/responses", Responses(runner, prompts, stored=stored, **limits), methods=["POST"]),
        Route("/v1/responses/{name}", by_id.read),
        Route("/v1/responses/{name}/cancel", by_id.cancel, methods=["POST"]),
        Route("/v1/audio/transcriptions", Audio(runner, prompts, task="transcribe", **limits), methods=["POST"]),
        Route("/v1/audio/translations", Audio(runner, prompts, task="translate", **limits), methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/v1/models", _models(config, prompts.max_model_len, adapters)),
        Route("/health", _health),
        Route("/metrics", _metrics(metrics)),
        Route(f"{_FLEET}snapshot", fleet.snapshot),
        Route(f"{_FLEET}tables", tables.read),
        Route(f"{_FLEET}tables", tables.learn, methods=["POST"]),
        Route(f"{_FLEET}feather", tables.feather, methods=["POST"]),
        Route(f"{_FLEET}adapters", AdapterRoute(adapters).want, methods=["POST"]),
        Route(f"{_FLEET}stats", fleet.stats),
        Route(f"{_FLEET}drain", fleet.drain, methods=["POST"]),
    ]
    if config.dev_mode:
        routes.append(Route("/reset_prefix_cache", _reset(runner), methods=["POST"]))
    handlers: Any = {ApiError: _api_error, 404: _not_found, 405: _not_allowed}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirect would go to whatever host the client named
    return _Guard(app, read_secret(config.api_key_file), read_secret(config.admin_token_file))


def _end_with_the_engine(loop: asyncio.Task[None]) -> None:
    """End the process, so that it is restarted: without the engine's loop the server would look healthy and answer
    nothing."""
    if not loop.cancelled() and (error := loop.exception()) is not None:
        log.critical("the engine stopped with an error, so the server ends", exc_info=error)
        os._exit(1)  # a graceful end would wait for answers that nobody computes any more


def _models(
    config: SimulatorConfig, max_model_len: int, adapters: SimulatedAdapters
) -> Callable[[Request], Awaitable[Response]]:
    created = int(time.time())

    def card(name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": created, "owned_by": "plumage-simulator", "root": name,
            "parent": parent, "max_model_len": max_model_len,
        }  # fmt: skip

    async def models(request: Request) -> Response:
        names = [card(config.model, None), *(card(adapter, config.model) for adapter in adapters.sources())]
        return _json({"object": "list", "data": names})

    return models


def _metrics(metrics: Metrics) -> Callable[[Request], Awaitable[Response]]:
    async def render(request: Request) -> Response:
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return render


def _reset(runner: Runner) -> Callable[[Request], Awaitable[Response]]:
    async def reset(request: Request) -> Response:
        """As vLLM's, it answers 200 whether or not requests in flight kept the cache from being reset."""
        asked = request.query_params
        running, external = (_is_true(asked.get(name)) for name in ("reset_running_requests", "reset_external"))
        if not await runner.reset_prefix_cache(running=running, external=external):
            log.warning("the prefix cache was not reset: requests in flight hold blocks of it")
        return Response(status_code=200)

    return reset


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() in ("true", "1", "yes", "on")


async def _health(request: Request) -> Response:
    return Response(status_code=200)


async def _api_error(request: Request, error: ApiError) -> Response:
    return Response(error.body(), error.status, media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    return await _api_error(request, ApiError(404, f"there is no {request.url.path} here", kind="NotFoundError"))


async def _not_allowed(request: Request, error: Exception) -> Response:
    message = f"{request.method} is not allowed at {request.url.path}"
    return await _api_error(request, ApiError(405, message, kind="MethodNotAllowed"))


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
