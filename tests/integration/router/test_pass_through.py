"""Endpoints that engines answer without generating, through a router on a socket."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import openai
import pytest

EMBEDDED = {"object": "list", "model": "tiny", "usage": {"prompt_tokens": 3, "total_tokens": 3},
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]}  # fmt: skip


def answers(status: int, body: Any) -> Any:
    data = json.dumps(body).encode()

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (status, len(data)) + data)

    return answer


async def test_openai_client_gets_embeddings(start: Any) -> None:
    running = await start(engines=1)
    (engine,) = running.engines
    engine.answer = answers(200, EMBEDDED)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        got = await client.embeddings.create(model="tiny", input="hello", encoding_format="float")
    assert got.data[0].embedding == [0.5, -1.0]
    assert engine.seen[0].line == "POST /v1/embeddings HTTP/1.1"
    assert engine.seen[0].json == {"model": "tiny", "input": "hello", "encoding_format": "float"}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/rerank", "/score"])
async def test_answer_and_error_of_the_engine_reach_the_client(start: Any, path: str) -> None:
    running = await start(engines=1)
    body = {"/tokenize": {"prompt": "a"}, "/v1/rerank": {"query": "a", "documents": ["b"]},
            "/score": {"text_1": "a", "text_2": "b"}}[path]  # fmt: skip
    for status, sent in ((200, {"ok": path}), (404, {"detail": "Not Found"}), (400, {"error": {"code": 400}})):
        running.engines[0].answer = answers(status, sent)
        got = await running.post({"model": "tiny", **body}, path=path)
        assert (got.status, got.json) == (status, sent)
    assert [seen.line.split()[1] for seen in running.engines[0].seen] == [path] * 3


async def test_requests_spread_by_load(start: Any) -> None:
    running = await start(engines=2, policy={"name": "Lbgr"})
    for engine in running.engines:
        engine.answer = answers(200, EMBEDDED)
    body = {"model": "tiny", "input": "the same text"}
    await asyncio.gather(*(running.post(body, path="/v1/embeddings") for _ in range(20)))
    assert all(engine.seen for engine in running.engines), "one text is no reason for one replica"


async def test_dead_engine_costs_the_client_nothing(start: Any) -> None:
    running = await start(engines=2)
    for engine in running.engines:
        engine.answer = answers(200, EMBEDDED)
    await running.engines[0].stop()
    for _ in range(6):
        assert (await running.post({"model": "tiny", "input": "a"}, path="/v1/embeddings")).status == 200


async def test_nothing_is_learned_of_speed_and_caches(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    running.engines[0].answer = answers(200, EMBEDDED)
    for _ in range(5):
        await running.post({"model": "tiny", "input": "a"}, path="/v1/embeddings")
    page = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()

    def value(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", page, re.M)
        assert found is not None, name
        return float(found[1])

    assert value("plumage_router_requests_total") == 5
    assert value("plumage_router_latency_seconds_count") == 0
    assert value("plumage_router_usage_missing_total") == 0
    assert value("plumage_router_prompt_tokens_total") == 0


async def test_only_post_is_answered(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    got = await running.send(kit.request({}, path="/v1/embeddings", method="GET"))
    assert (got.status, got.error["code"]) == (405, "method_not_allowed")
    assert not running.engines[0].seen


async def test_key_is_needed_where_clients_need_keys(start: Any, tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme client-key-1234567890\n")
    running = await start(engines=1, auth={"apiKeysFile": str(keys)})
    running.engines[0].answer = answers(200, EMBEDDED)
    async with httpx.AsyncClient(base_url=running.url) as http:
        body = {"model": "tiny", "input": "a"}
        assert (await http.post("/tokenize", json={"model": "tiny", "prompt": "a"})).status_code == 401
        allowed = {"authorization": "Bearer client-key-1234567890"}
        assert (await http.post("/v1/embeddings", json=body, headers=allowed)).status_code == 200
    assert len(running.engines[0].seen) == 1
    assert running.engines[0].seen[0].json["cache_salt"]


async def test_failing_completions_do_not_quarantine_the_same_body_elsewhere(start: Any) -> None:
    running = await start(engines=3)
    for engine in running.engines:
        engine.answer = answers(500, {})
    body = {"model": "tiny", "prompt": "a"}
    assert (await running.post(body, path="/v1/completions")).status >= 500
    assert (await running.post(body, path="/v1/completions")).status == 422
    for engine in running.engines:
        engine.answer = answers(200, {"tokens": [1]})
    assert (await running.post(body, path="/tokenize")).status == 200
    assert (await running.post(body, path="/v1/completions")).status == 422, "a tokenized body is no proof"


async def test_tokenized_text_says_nothing_about_a_replica(start: Any) -> None:
    running = await start(engines=1)
    (engine,), replica = running.engines, running.router.pool.fleet.get("chat-0")
    replica.breaker.failed(0.0)
    engine.answer = answers(200, {"tokens": [1]})
    assert (await running.post({"model": "tiny", "prompt": "a"}, path="/tokenize")).status == 200
    assert replica.breaker._failures == 1
    engine.answer = answers(200, EMBEDDED)
    assert (await running.post({"model": "tiny", "input": "a"}, path="/v1/embeddings")).status == 200
    assert replica.breaker._failures == 0
