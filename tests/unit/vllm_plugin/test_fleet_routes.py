"""The fleet's routes around an API server, without vLLM: allowed callers, bounds, and an absent engine core.

tests/vllm/fleet covers the same on real vLLM.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from plumage_engine.adapters import AdapterLoader, AdapterServer
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.pool_hotness import LIFETIME, PoolHotness
from plumage_engine.vllm.routes import api_server
from plumage_engine.vllm.routes.api_server import ApiServerRoutes

STATS = {"running": 0, "waiting": 0, "counters": {"failures": {"record": 2}}, "features": {}}


class Server:
    """vLLM's own application: the answer to a POST is held back until `go`."""

    def __init__(self) -> None:
        self.arrived, self.go = asyncio.Event(), asyncio.Event()
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["path"])
        if scope["method"] == "POST":
            self.arrived.set()
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"vllm"})


async def stats(name: str, body: bytes) -> tuple[int, bytes]:
    assert name == "stats"
    return 200, json.dumps(STATS).encode()


def made(ask: Callable[[str, bytes], Awaitable[tuple[int, bytes]]] | None, token: str | None = None) -> ApiServerRoutes:
    routes = ApiServerRoutes()
    routes.app, routes.ask = Server(), ask
    routes.token = SecretStr(token) if token else None
    return routes


@asynccontextmanager
async def client(routes: ApiServerRoutes, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=routes, client=(host, 1234), **options)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        yield http


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", 200), ("::1", 200), ("10.0.0.7", 403)])
async def test_only_this_machine_is_answered_without_a_token(host: str, expected: int) -> None:
    async with client(made(stats), host) as http:
        assert (await http.get("/v1/plumage/stats")).status_code == expected


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer other", "Basic secret", "Bearer sécret"])
async def test_token_is_required_from_every_caller(given: str | None) -> None:
    async with client(made(stats, "secret")) as http:
        headers = {} if given is None else {"authorization": given.encode()}
        answer = await http.get("/v1/plumage/stats", headers=headers)
        assert answer.status_code == 401
        assert (await http.get("/v1/plumage/stats", headers={"authorization": "Bearer secret"})).status_code == 200


async def test_vllm_key_is_required_where_vllm_does_not_require_it() -> None:
    """Its own check covers /v1, /v2, /inference and /cohere, but /invocations runs a completion too."""
    routes = made(stats)
    routes.api_keys = ("one", "two")
    routes.app.go.set()  # type: ignore[attr-defined]
    async with client(routes) as http:
        for path in ("/invocations", "/tokenize", "/pause"):
            for wrong in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}):
                assert (await http.post(path, headers=wrong)).status_code == 401
            assert (await http.post(path, headers={"authorization": "bearer two"})).status_code == 200
        assert [(await http.get(path)).status_code for path in ("/health", "/metrics")] == [200, 200]
        assert (await http.post("/v1/completions")).status_code == 200, "vLLM checks its key there"
    assert "/pause" in routes.app.seen  # type: ignore[attr-defined]


async def test_other_paths_pass() -> None:
    routes = made(stats, "secret")
    async with client(routes) as http:
        assert (await http.get("/v1/models")).text == "vllm"
        assert (await http.get("/v1/plumage-else")).text == "vllm"
    assert routes.app.seen == ["/v1/models", "/v1/plumage-else"]


async def test_routes_below_a_root_path_are_guarded_too() -> None:
    async with client(made(stats, "secret"), root_path="/llm") as http:
        assert (await http.get("/llm/v1/plumage/stats")).status_code == 401


async def dead(name: str, body: bytes) -> tuple[int, bytes]:
    raise RuntimeError("EngineCore encountered an issue")


async def silent(name: str, body: bytes) -> tuple[int, bytes]:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(("ask", "expected"), [(None, 404), (dead, 503), (silent, 503)])
async def test_silent_engine_core_is_reported(ask: Any, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "_QUICK_SECONDS", 0.05)
    monkeypatch.setattr(api_server, "_SCRAPE_SECONDS", 0.05)
    routes = made(ask)
    async with client(routes) as http:
        answer = await http.get("/v1/plumage/stats")
        assert answer.status_code == expected
        assert answer.json()["error"]["message"]
        assert (await http.get("/metrics")).text == "vllm"  # a scrape never fails because of us


async def test_engine_core_without_our_scheduler_is_logged_and_not_asked_again() -> None:
    guard = Guard("scheduler", Counters())
    guard.failed(AttributeError("made to fail"))
    asked: list[str] = []

    async def stock(name: str, body: bytes) -> tuple[int, bytes]:
        asked.append(name)
        routes.disable(guard)
        raise RuntimeError("Call to plumage method failed")

    routes = made(stock)
    async with client(routes) as http:
        for _ in range(2):
            stats = (await http.get("/v1/plumage/stats")).raise_for_status().json()
            assert stats["features"] == {"scheduler": {"on": False, "reason": "AttributeError: made to fail"}}
            assert stats["counters"] == {"failures": {"scheduler": 1}}
            assert (await http.get("/v1/plumage/tables")).status_code == 503
            assert (await http.get("/metrics")).text == "vllm"
        drained = await http.post("/v1/plumage/drain", json={"timeoutSeconds": 0})
    assert asked == ["stats"]
    assert drained.json() == {"drained": True, "inFlight": 0}
    samples = {
        (sample.name, sample.labels.get("feature")): sample.value
        for family in routes.metrics.collect()
        for sample in family.samples
    }
    assert samples["plumage_engine_feature_on", "scheduler"] == 0
    assert samples["plumage_engine_failures_total", "scheduler"] == 1
    assert ("plumage_engine_batch_limit", None) not in samples


async def test_body_beyond_its_bound_is_refused_before_it_is_complete() -> None:
    asked: list[str] = []

    async def ask(name: str, body: bytes) -> tuple[int, bytes]:
        asked.append(name)
        return 204, b""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async with client(made(ask)) as http:
        assert (await http.post("/v1/plumage/tables", content=endless())).status_code == 413
        assert asked == []
        assert (await http.post("/v1/plumage/tables", content=b"{}")).status_code == 204
        assert asked == ["learn"]


async def test_drain_waits_for_requests_in_flight() -> None:
    routes = made(stats)
    async with client(routes) as http:
        request = asyncio.create_task(http.post("/v1/completions"))
        await routes.app.arrived.wait()
        short = (await http.post("/v1/plumage/drain", json={"timeoutSeconds": 0})).json()
        assert short == {"drained": False, "inFlight": 1}
        drain = asyncio.create_task(http.post("/v1/plumage/drain", json={"timeoutSeconds": 60}))
        await asyncio.sleep(0)
        assert routes.draining
        routes.app.go.set()
        assert (await drain).json() == {"drained": True, "inFlight": 0}
        assert (await request).text == "vllm"


async def test_drain_without_a_timeout_checks_once() -> None:
    async with client(made(stats)) as http:
        answer = await http.post("/v1/plumage/drain", json={"timeoutSeconds": 0})
    assert answer.json() == {"drained": True, "inFlight": 0}


async def test_drain_outlasts_a_step_longer_than_the_answer_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def slow(name: str, body: bytes) -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise TimeoutError
        return await stats(name, body)

    monkeypatch.setattr(api_server, "_POLL_SECONDS", 0.001)
    async with client(made(slow)) as http:
        answer = await http.post("/v1/plumage/drain", json={"timeoutSeconds": 60})
    assert (answer.status_code, answer.json()["drained"]) == (200, True)
    assert asked > 1


async def test_drain_waits_for_requests_of_other_servers_too() -> None:
    left = [2, 1, 0]

    async def ask(name: str, body: bytes) -> tuple[int, bytes]:
        return 200, json.dumps({**STATS, "running": left.pop(0)}).encode()

    async with client(made(ask)) as http:
        assert (await http.post("/v1/plumage/drain", json={"timeoutSeconds": 60})).json()["drained"]
    assert left == []


@pytest.mark.parametrize(
    "body",
    [
        b"no", b"[]", b'{"timeoutSeconds": "x"}', b'{"timeoutSeconds": -1}', b'{"timeoutSeconds": NaN}',
        b'{"timeoutSeconds": ' + b"9" * 400 + b"}", b"[" * 100_000,
    ],
)  # fmt: skip
async def test_invalid_drain_is_refused(body: bytes) -> None:
    routes = made(stats)
    async with client(routes) as http:
        assert (await http.post("/v1/plumage/drain", content=body)).status_code == 400
    assert not routes.draining


async def test_scrape_reads_the_counters() -> None:
    routes = made(stats)
    async with client(routes) as http:
        await http.get("/metrics")
    samples = {
        (sample.name, sample.labels.get("feature")): sample.value
        for family in routes.metrics.collect()
        for sample in family.samples
    }
    assert samples["plumage_engine_failures_total", "record"] == 2
    assert samples["plumage_engine_stops_total", None] == 0


def test_pool_wide_hotness_expires() -> None:
    now = [100.0]
    hotness = PoolHotness(lambda: now[0])
    assert hotness.prior(1) is None
    hotness.update({1: 5.0})
    assert (hotness.prior(1), hotness.prior(2), len(hotness)) == (5.0, None, 1)
    now[0] += LIFETIME
    assert (hotness.prior(1), len(hotness)) == (None, 0)


@pytest.mark.parametrize("name", ["feather", "promote"])
async def test_messages_of_an_agent_reach_the_engine_core_unchanged(name: str) -> None:
    heard: list[tuple[str, bytes]] = []

    async def core(asked: str, body: bytes) -> tuple[int, bytes]:
        heard.append((asked, body))
        return (400, b'{"error": {}}') if body == b"wrong" else (204, b"")

    async with client(made(core, "secret")) as http:
        headers = {"authorization": "Bearer secret"}
        for body, status in ((b'{"policy": "Bandit"}', 204), (b"wrong", 400)):
            answer = await http.post(f"/v1/plumage/{name}", content=body, headers=headers)
            assert answer.status_code == status
        assert (await http.post(f"/v1/plumage/{name}", content=b"{}")).status_code == 401
        assert (await http.get(f"/v1/plumage/{name}", headers=headers)).status_code == 404
    assert heard == [(name, b'{"policy": "Bandit"}'), (name, b"wrong")]


class Adapters(AdapterServer):
    """An engine whose adapters need no files."""

    def __init__(self) -> None:
        self.served: dict[str, str] = {}

    def sources(self) -> dict[str, str]:
        return self.served

    async def fetch(self, source: str) -> str:
        return source

    async def load(self, name: str, source: str, folder: str) -> None:
        self.served[name] = source

    async def unload(self, name: str) -> None:
        del self.served[name]


async def test_adapters_need_the_token_and_a_list_of_sources() -> None:
    routes, server = made(None, "secret"), Adapters()
    routes.adapters = AdapterLoader(server)
    key = {"authorization": "Bearer secret"}
    async with client(routes) as http:
        wanted = {"adapters": {"sql": "/sql"}}
        assert (await http.post("/v1/plumage/adapters", json=wanted)).status_code == 401
        assert (await http.post("/v1/plumage/adapters", json={"adapters": ["sql"]}, headers=key)).status_code == 400
        assert server.served == {}
        assert (await http.post("/v1/plumage/adapters", json=wanted, headers=key)).json()["served"] == []
        for _ in range(10):
            await asyncio.sleep(0)
        answer = await http.post("/v1/plumage/adapters", json=wanted, headers=key)
        assert answer.json() == {"adapters": [{"name": "sql", "state": "Loaded", "message": ""}], "served": ["sql"]}


async def test_vllm_without_what_loading_needs_says_so() -> None:
    routes = made(None)
    routes.no_adapters = "this vLLM's OpenAIServingModels has no load_lora_adapter"
    async with client(routes) as http:
        answer = await http.post("/v1/plumage/adapters", json={"adapters": {}})
    assert answer.status_code == 501
    assert "has no load_lora_adapter" in answer.json()["error"]["message"]
