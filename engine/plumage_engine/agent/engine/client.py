"""The agent's HTTP calls to its own engine: load, snapshot, learned tables, hotness and warm-up prompts.

All calls raise `EngineDownError` (an OSError) when the engine can't be reached or its response is invalid. `snapshot`
is None where the engine has no such route, as stock vLLM. Each call has a timeout and each response a bound.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec
from pydantic import SecretStr

from plumage.batching.stop.shared import LearnedTable
from plumage.errors import ConfigurationError
from plumage.fleet_report import AdapterReport
from plumage_engine.agent.engine.engine_metrics import EngineLoad, parse_load
from plumage_engine.kv_events import Snapshot, WireError, decode_snapshot

__all__ = ["AdapterAnswer", "EngineClient", "EngineDownError", "bearer", "read_bounded"]

log = logging.getLogger(__name__)

QUICK = httpx.Timeout(2.0)
BETWEEN_STEPS = httpx.Timeout(6.0, connect=2.0)  # the engine core answers after its step, within five seconds
SLOW = httpx.Timeout(60.0, connect=2.0)
MOST_METRICS = 8 << 20
MOST_SNAPSHOT = 1 << 30
MOST_TABLES = 1 << 20
MOST_MODELS = 1 << 20
NO_ROUTE = frozenset({404, 405, 501})


class EngineDownError(OSError):
    """The engine did not answer as an engine."""


class AdapterAnswer(msgspec.Struct, frozen=True):
    """adapters: each one that is wanted. served: the names that requests may have now."""

    adapters: list[AdapterReport]
    served: list[str]


class EngineClient:
    """One engine. `token` opens /v1/plumage, `api_key` the OpenAI routes. tls: for an https URL; None: the default."""

    def __init__(
        self,
        url: str,
        token: SecretStr | None = None,
        api_key: SecretStr | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        limits = httpx.Limits(max_connections=64)
        # No proxy of the environment: it must never see the engine's token.
        self._http = httpx.AsyncClient(
            base_url=url, timeout=QUICK, limits=limits, trust_env=False, verify=True if tls is None else tls
        )
        self._token = token
        self._api_key = api_key
        self._refused = False

    async def close(self) -> None:
        await self._http.aclose()

    async def load(self) -> EngineLoad:
        return parse_load(await self.page())

    async def page(self) -> str:
        """Returns the text of the engine's /metrics."""
        return (await self._get("/metrics", {}, MOST_METRICS, QUICK)).decode(errors="replace")

    async def snapshot(self) -> Snapshot | None:
        """The engine's cached blocks; None where it has no such route."""
        try:
            return decode_snapshot(await self._get("/v1/plumage/snapshot", bearer(self._token), MOST_SNAPSHOT, SLOW))
        except httpx.HTTPStatusError as error:
            self._check_refusal(error)
            return None
        except WireError as error:
            raise EngineDownError(str(error)) from error

    async def tables(self) -> LearnedTable | None:
        """The learned table of its stop policy; None where it has no such route, or its policy does not learn.
        ConfigurationError when the response is no table."""
        try:
            data = await self._get("/v1/plumage/tables", bearer(self._token), MOST_TABLES, QUICK)
            return msgspec.json.decode(data, type=LearnedTable)
        except httpx.HTTPStatusError as error:
            self._check_refusal(error)
            return None
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the engine's learned table can't be read: {error}") from error

    async def offer_table(self, table: LearnedTable) -> bool:
        """Send it the table of other engines. False: it refused the table."""
        return (await self._post("tables", msgspec.json.encode(table))).is_success

    async def promote(self, uses: Mapping[int, int]) -> bool:
        """Send it the pool's hotness by block hash. False: it does not rank by hotness."""
        return self._accepted(await self._post("promote", msgspec.json.encode({"uses": uses}), timeout=BETWEEN_STEPS))

    async def want_adapters(self, wanted: Mapping[str, str]) -> AdapterAnswer | None:
        """Have it serve these LoRA adapters and no others: the folder or repository of each, by name. None: it has no
        such route. ConfigurationError: it can load none, and says why."""
        answer = await self._post("adapters", msgspec.json.encode({"adapters": wanted}), timeout=BETWEEN_STEPS)
        if answer.status_code == 501:
            raise ConfigurationError(f"its engine can load no adapters: {answer.text[:300]}")
        if not self._accepted(answer):
            return None
        try:
            return msgspec.json.decode(answer.content, type=AdapterAnswer)
        except msgspec.DecodeError as error:
            raise EngineDownError("the engine's answer about its adapters can't be read") from error

    async def adapters(self) -> frozenset[str]:
        """The names of the LoRA adapters that it serves: the models of `/v1/models` that have a parent."""
        try:
            data = await self._get("/v1/models", bearer(self._api_key), MOST_MODELS, QUICK)
            models = json.loads(data)["data"]
            return frozenset(str(model["id"]) for model in models if model.get("parent"))
        except httpx.HTTPStatusError as error:
            raise EngineDownError(f"the engine answered {error.response.status_code} to /v1/models") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EngineDownError("the engine's list of models can't be read") from error

    async def take_feather(self, settings: bytes) -> bool:
        """Send it a batching policy. False: it has no such route. ConfigurationError: it refuses the policy."""
        answer = await self._post("feather", settings, timeout=BETWEEN_STEPS)
        if answer.status_code in (400, 409):
            raise ConfigurationError(answer.text[:500])
        return self._accepted(answer)

    async def _post(self, name: str, body: bytes, **more: Any) -> httpx.Response:
        """Post to a /v1/plumage route. EngineDownError without a response."""
        try:
            return await self._http.post(f"/v1/plumage/{name}", content=body, headers=bearer(self._token), **more)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineDownError(f"the engine can't be reached: {type(error).__name__}") from error

    def _accepted(self, answer: httpx.Response) -> bool:
        """False: no such route, or the token is refused."""
        try:
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            self._check_refusal(error)
            return False
        return True

    def _check_refusal(self, error: httpx.HTTPStatusError) -> None:
        """EngineDownError unless the route is missing or the token is refused: other errors may pass."""
        status = error.response.status_code
        if status in (401, 403) and not self._refused:
            self._refused = True
            log.warning("the engine refuses its own routes (%d): engineTokenFile must hold its admin token", status)
        if status not in NO_ROUTE and status not in (401, 403):
            raise EngineDownError(f"the engine answered {status} on its own routes") from error

    async def complete(self, model: str, ids: Sequence[int], seconds: float) -> bool:
        """Have the engine compute, and so cache, a prompt of token ids. False: it refused the request."""
        body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0}
        try:
            answer = await self._http.post("/v1/completions", json=body, headers=bearer(self._api_key), timeout=seconds)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineDownError(f"the engine can't be reached: {type(error).__name__}") from error
        return answer.is_success

    async def _get(self, path: str, headers: Mapping[str, str], most: int, time_limit: httpx.Timeout) -> bytes:
        try:
            return await read_bounded(self._http, path, headers, most, time_limit)
        except httpx.HTTPStatusError as error:
            if path == "/metrics":
                raise EngineDownError(f"the engine answered {error.response.status_code} to {path}") from error
            raise
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise EngineDownError(f"the engine can't be reached: {type(error).__name__} {error}") from error


async def read_bounded(
    http: httpx.AsyncClient, url: str, headers: Mapping[str, str], most: int, time_limit: httpx.Timeout
) -> bytes:
    """GET; ValueError when the answer is larger than `most` bytes, HTTPStatusError when it is no success."""
    parts, size = [], 0
    async with http.stream("GET", url, headers=dict(headers), timeout=time_limit) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            size += len(part)
            if size > most:
                raise ValueError(f"{url} answers with more than {most} bytes")
            parts.append(part)
    return b"".join(parts)


def bearer(secret: SecretStr | None) -> dict[str, str]:
    return {} if secret is None else {"Authorization": f"Bearer {secret.get_secret_value()}"}
