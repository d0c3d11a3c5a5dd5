"""A router of several pools, with simulated engines and a real directory."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from support.multi_pool_router import ADMIN, Gateway, at, simulators, words
from support.otlp import received_spans
from support.scrapes import families

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, Load, State
from plumage.directory.server.local_server import LocalServer
from plumage.fleet_report import FLEET_PATH, read_router_report

PROMPT = "The same long beginning. " * 200


@pytest.mark.redis
async def test_dead_pool_does_not_affect_other(gateway: Gateway, kit: Any) -> None:
    with LocalServer() as directory, simulators("chat", "code") as started:
        (chat, chat_engine), (code, _) = started.items()
        gateway.add("chat", {"chat-0": chat}, directoryUrl=directory.url)
        gateway.add("code", {"code-0": code}, directoryUrl=directory.url)
        await gateway.start()
        for model in ("chat", "code"):
            answer = await gateway.chat(model, PROMPT, stream=True)
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert words(answer)
            assert f'"model":"{model}"' in answer.text.replace(" ", "")
        assert await gateway.models() == ["chat", "code"]

        chat_engine.kill()
        chat_engine.wait(60)
        dead = await gateway.chat("chat")
        assert dead.status_code in (502, 503), dead.text
        assert dead.json()["error"]["code"] in ("upstream_failed", "no_replica")
        assert "retry-after" in dead.headers
        alive = await gateway.chat("code", PROMPT, stream=True)
        assert alive.status_code == 200
        assert words(alive)
        await kit.until(lambda: not gateway.router.dispatcher.pools["chat"].fleet.candidates(time.monotonic()))
        assert (await gateway.chat("chat")).json()["error"]["code"] == "no_replica"
        await kit.until(lambda: gateway.router.dispatcher.ready)  # requests are served before the caches are loaded
        assert (await gateway.http.get("/health")).status_code == 200, "the others are served"


@pytest.mark.redis
async def test_pools_share_a_directory_separately(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    with LocalServer() as directory:
        for engine, pool in zip(engines, ("chat", "code"), strict=True):
            gateway.add(pool, at(engine), directoryUrl=directory.url)
        await gateway.start()
        pools = gateway.router.dispatcher.pools
        writer = DirectoryWriter(directory.url, pool="chat", replica="chat-0", heartbeat_seconds=0.2)
        async with writer:
            writer.report(state=State.READY, load=Load())
            await kit.until(lambda: not any(one.directory.degraded for one in pools.values()))
            body = {"model": "chat", "messages": [{"role": "user", "content": PROMPT}]}
            reader = pools["chat"].reader
            chunks = list(reader.read(b"/v1/chat/completions", json.dumps(body).encode()).chunks)
            writer.publish([Change(chunk, 1, 60 * depth) for depth, chunk in enumerate(chunks, 1)])
            mirrors = {pool: one.decider.mirror for pool, one in pools.items()}
            await kit.until(lambda: mirrors["chat"].match(chunks))
        assert mirrors["code"].match(chunks) == {}


async def test_unknown_model_error_names_served_models(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    gateway.add("chat", at(engines[0]), "chat", "gpt-x", "lora", model="tiny",
              model_more={"aliases": ["chat", "gpt-x"], "adapters": ["lora"]})  # fmt: skip
    gateway.add("code", at(engines[1]))
    await gateway.start()
    answer = await gateway.chat("nobody")
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "message": "The model 'nobody' does not exist here; this gateway serves 'chat', 'code', 'gpt-x', 'lora'.",
        "type": "not_found_error", "param": "model", "code": "model_not_found",
    }  # fmt: skip
    assert (await gateway.chat("tiny")).status_code == 404, "a name that the gateway does not give leads nowhere"
    assert [(await gateway.chat(name)).status_code for name in ("chat", "gpt-x", "lora", "code")] == [200] * 4
    assert [seen.json["model"] for seen in engines[0].seen] == ["tiny", "tiny", "lora"]
    assert [seen.json["model"] for seen in engines[1].seen] == ["code"]
    assert (await gateway.http.get("/v1/models/gpt-x")).json()["id"] == "gpt-x"
    assert (await gateway.http.get("/v1/models/tiny")).status_code == 404


async def test_tenant_gets_the_models_that_each_pool_allows(gateway: Gateway, engines: list[Any]) -> None:
    keys = gateway.folder / "keys"
    keys.write_text("acme key-a\nother key-o\n")
    (gateway.folder / "salt").write_text("salt-key\n")
    gateway.settings["auth"] = {"apiKeysFile": str(keys)}
    salt = {"saltKeyFile": str(gateway.folder / "salt")}
    gateway.add("chat", at(engines[0]), quotas=[{"tenant": "acme", "models": ["chat"]}], **salt)
    gateway.add("code", at(engines[1]), quotas=[{"tenant": "acme", "models": ["none"]}], **salt)
    await gateway.start()
    for key, models in (("key-a", ["chat"]), ("key-o", ["chat", "code"])):
        gateway.http.headers["authorization"] = f"Bearer {key}"
        assert await gateway.models() == models
        unknown = await gateway.chat("gpt-x")
        assert (unknown.status_code, "'code'" in unknown.text) == (404, "code" in models), "it names no other models"
        for name in ("chat", "code"):
            assert (await gateway.chat(name)).status_code == (200 if name in models else 403)
            assert (await gateway.http.get(f"/v1/models/{name}")).status_code == (200 if name in models else 404)
    assert len(engines[1].seen) == 1


async def test_errors_equal_those_of_single_pool(gateway: Gateway, engines: list[Any]) -> None:
    keys = gateway.folder / "keys"
    keys.write_text("acme key-a\n")
    (gateway.folder / "salt").write_text("salt-key\n")
    gateway.settings["auth"] = {"apiKeysFile": str(keys)}
    gateway.add("chat", at(engines[0]), saltKeyFile=str(gateway.folder / "salt"))
    await gateway.start()
    path, key = "/v1/chat/completions", {"authorization": "Bearer key-a", "content-type": "application/json"}

    async def code(content: bytes, headers: dict[str, str]) -> tuple[int, str]:
        answer = await gateway.http.post(path, content=content, headers=headers)
        return answer.status_code, answer.json()["error"]["code"]

    assert await code(b'{"model": "nobody"}', {}) == (401, "invalid_api_key"), "no model's name without a key"
    assert await code(b"{", key) == (400, "invalid_json")
    assert await code(b"{}", key) == (400, "missing_field")
    assert await code(b'{"model": ["chat"]}', key) == (400, "invalid_type")
    assert await code(b'{"model": "chat", "model": "code"}', key) == (400, "duplicate_key")
    assert await code(b'{"model": "chat"}', {**key, "content-type": "text/plain"}) == (415, "media_type")
    assert await code(b'{"model": "chat", "priority": 1, "messages": []}', key) == (400, "field_not_allowed")
    assert engines[0].seen == []
    asked = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
    answer = await gateway.http.post(path, headers=key, json=asked)
    assert answer.status_code == 200
    assert engines[0].seen[0].json["cache_salt"], "the tenant's own"


async def test_gateway_serves_anthropics_api(gateway: Gateway, engines: list[Any]) -> None:
    gateway.add("chat", at(engines[0]), "claude", model="tiny", model_more={"aliases": ["claude"]})
    gateway.add("code", at(engines[1]))
    await gateway.start()
    asked = {"max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
    assert (await gateway.http.post("/v1/messages", json={"model": "claude", **asked})).status_code == 200
    assert engines[0].seen[0].line.startswith("POST /v1/messages ")
    assert engines[0].seen[0].json == {"model": "tiny", **asked}
    refused = await gateway.http.post("/v1/messages", json={"model": "nobody", **asked})
    assert (refused.status_code, refused.json()["type"]) == (404, "error")
    assert refused.json()["error"]["type"] == "not_found_error"


async def test_pools_change_during_stream_of_another(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    chat, code = engines
    ended = asyncio.Event()

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("one ")))
        await ended.wait()
        rest = [kit.token("two "), kit.event("[DONE]")]
        writer.write(b"".join(map(kit.chunked, rest)) + b"0\r\n\r\n")

    gateway.add("chat", at(chat))
    await gateway.start()
    chat.answer = slowly
    stream = asyncio.create_task(gateway.chat("chat", stream=True))
    await kit.until(lambda: chat.seen)
    kept = gateway.router.dispatcher.pools["chat"]

    gateway.add("code", at(code))
    gateway.pools["chat"] |= {"names": ["chat", "talk"], "limits": {"maxInFlight": 1}}
    gateway.save()
    await kit.until(lambda: "code" in gateway.router.dispatcher.pools)
    assert (await gateway.chat("code")).status_code == 200
    assert gateway.router.dispatcher.pools["chat"] is kept, "a live setting recreates no pool"
    assert (await gateway.chat("talk")).json()["error"]["code"] == "overloaded", "one is under way, and one may be"

    del gateway.pools["chat"]
    gateway.save()
    await kit.until(lambda: "chat" not in gateway.router.dispatcher.pools)
    gone = await gateway.chat("chat")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    assert (await gateway.chat("code")).status_code == 200
    assert await gateway.models() == ["code"]
    ended.set()
    answer = await stream
    assert words(answer) == "one two "
    await kit.until(lambda: not gateway.router.dispatcher.ending)


async def test_broken_pool_does_not_affect_others(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    gateway.add("chat", at(engines[0]))
    gateway.add("lost", at(engines[1]), model_more={"modelFolder": "/nowhere/at/all"})
    await gateway.start()
    assert (await gateway.chat("chat")).status_code == 200
    answer = await gateway.chat("lost")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pool_unavailable")
    assert "/nowhere/at/all" not in answer.text, "an error shows no paths"
    assert await gateway.models() == ["chat"]
    status = (await gateway.http.get("/plumage/v1/status", headers=ADMIN)).json()
    assert "/nowhere/at/all" in status["broken"]["lost"]
    gateway.pools["lost"]["model"] = {"name": "lost", "modelFolder": "builtin://tiny-chat"}
    gateway.save()
    await kit.until(lambda: "lost" in gateway.router.dispatcher.pools)
    assert (await gateway.chat("lost")).status_code == 200


async def test_fixed_settings_of_gateway_are_reported(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    gateway.add("chat", at(engines[0]))
    await gateway.start()
    gateway.settings |= {"listen": {"port": 1}, "limits": {"maxInFlight": 7}}
    gateway.save()
    await kit.until(lambda: gateway.router.dispatcher.config_error)
    assert gateway.router.dispatcher.config_error == "listen: this change needs a new router process"
    assert gateway.router.dispatcher.limits.max_in_flight == 7
    gateway.settings["pools"] = [{"pool": "chat"}]
    gateway.save()
    await kit.until(lambda: "pools.0.names" in str(gateway.router.dispatcher.config_error))
    assert (await gateway.chat("chat")).status_code == 200


async def test_metrics_have_pool_label(gateway: Gateway, engines: list[Any]) -> None:
    gateway.add("chat", at(engines[0]))
    gateway.add("code", at(engines[1]))
    await gateway.start()
    for model in ("chat", "code", "code", "nobody"):
        await gateway.chat(model)
    found = families((await gateway.http.get("/metrics")).text)
    requests = {
        sample.labels.get("pool", ""): sample.value for sample in found["plumage_router_requests_total"].samples
    }
    assert requests == {"": 1, "chat": 1, "code": 2}
    ready = [sample.labels for sample in found["plumage_router_replica_ready"].samples]
    assert ready == [{"pool": "chat", "replica": "chat-0"}, {"pool": "code", "replica": "code-0"}]
    assert [sample.labels for sample in found["plumage_router_connections"].samples] == [{}]
    buckets = found["plumage_router_ttft_seconds"].samples
    assert {sample.labels.get("pool", "") for sample in buckets} == {"", "chat", "code"}

    answer = await gateway.http.get(FLEET_PATH, params={"pool": "code"}, headers=ADMIN)
    report = read_router_report(answer.content)
    assert (report.pool, report.requests, [one.id for one in report.replicas]) == ("code", 2, ["code-0"])
    assert (await gateway.http.get(FLEET_PATH, params={"pool": "code"})).status_code == 401
    without = await gateway.http.get(FLEET_PATH, headers=ADMIN)
    assert without.status_code == 404
    assert "chat, code" in without.json()["error"]["message"]
    status = (await gateway.http.get("/plumage/v1/status", params={"pool": "chat"}, headers=ADMIN)).json()
    assert (status["pool"], status["totals"]["requests"]) == ("chat", 1)


async def test_tracing_changes_without_a_new_pool(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    gateway.add("chat", at(engines[0]))
    gateway.add("code", at(engines[1]))
    await gateway.start()
    tracing, pools = gateway.router.dispatcher.tracing, dict(gateway.router.dispatcher.pools)
    await gateway.chat("chat")
    with received_spans() as collector:
        gateway.settings["tracing"] = {
            "endpoint": collector.endpoint, "samplingRatePerMillion": 1_000_000, "service": "front-gateway",
        }  # fmt: skip
        gateway.save()
        await kit.until(lambda: tracing.current)
        assert gateway.router.dispatcher.pools == pools, "no pool was built again"
        for model in ("chat", "code"):
            assert (await gateway.chat(model)).status_code == 200
        found = families((await gateway.http.get("/metrics")).text)
        assert [sample.labels for sample in found["plumage_router_untraced_requests_total"].samples] == [{}]
        gateway.settings["tracing"] = None
        gateway.save()
        await kit.until(lambda: tracing.current is None)
        await kit.until(lambda: len(collector.spans) == 4)
        assert (await gateway.chat("chat")).status_code == 200
    assert [span.attributes["plumage.pool"] for span in collector.named("POST")] == ["chat", "code"]
    assert "traceparent" not in engines[0].seen[-1].headers


async def test_pool_is_served_once_its_secret_exists(
    gateway: Gateway, engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its volume is optional for a gateway's pods, so that one pool's Secret keeps nobody from the others."""
    monkeypatch.setattr("plumage_router.multi_pool.server._RETRY_INTERVAL", 0.0)
    monkeypatch.setattr("plumage_router.multi_pool.server.ROTATION", 0.05)
    key = gateway.folder / "engine-key"
    gateway.add("chat", at(engines[0]), engineApiKeyFile=str(key))
    gateway.add("code", at(engines[1]))
    await gateway.start()
    assert (await gateway.chat("code")).status_code == 200
    assert (await gateway.chat("chat")).json()["error"]["code"] == "pool_unavailable"
    key.write_text("engines-secret\n")
    async with asyncio.timeout(30):
        while (await gateway.chat("chat")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert engines[0].seen[0].headers["authorization"] == "Bearer engines-secret"


def _shared(name: str, *pools: tuple[str, int], **more: Any) -> dict[str, Any]:
    return {"name": name, "pools": [{"pool": pool, "weight": weight} for pool, weight in pools], **more}


async def test_model_is_split_between_pools_by_weight(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    gateway.add("chat", at(engines[0]), "chat", model="tiny", model_more={"aliases": ["chat"]})
    gateway.add("code", at(engines[1]), "chat", model="next", model_more={"aliases": ["chat"]})
    gateway.settings["sharedModels"] = [_shared("chat", ("chat", 3), ("code", 1))]
    await gateway.start()
    assert await gateway.models() == ["chat"]
    for number in range(40):
        for _ in range(2):  # the turns of a conversation
            assert (await gateway.chat("chat", f"question {number}")).status_code == 200
    asked = [[seen.json["messages"][0]["content"] for seen in engine.seen] for engine in engines]
    assert len(asked[1]) in range(6, 36), "20 ± 2.6 standard deviations of ten conversations"
    assert not set(asked[0]) & set(asked[1]), "a conversation keeps its pool"
    assert {seen.json["model"] for seen in engines[1].seen} == {"next"}
    page = (await gateway.http.get("/metrics", headers=ADMIN)).text
    counts = {f'plumage_router_split_requests_total{{model="chat",pool="{name}"}} {len(found)}'
              for name, found in zip(("chat", "code"), asked, strict=True)}  # fmt: skip
    assert counts < set(page.splitlines())

    gateway.settings["sharedModels"] = [_shared("chat", ("chat", 0), ("code", 1))]
    gateway.save()
    routes = gateway.router.dispatcher.routes
    await kit.until(lambda: gateway.router.dispatcher.routes is not routes)
    before = len(engines[0].seen)
    assert [(await gateway.chat("chat", f"question {number}")).status_code for number in range(20)] == [200] * 20
    assert len(engines[0].seen) == before


async def test_model_falls_back_while_its_pool_has_no_replica(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    gateway.add("chat", at(engines[0]), model="tiny", model_more={"aliases": ["chat"]})
    gateway.add("code", at(engines[1]), "code", "chat", model="code", model_more={"aliases": ["chat"]})
    gateway.settings["sharedModels"] = [_shared("chat", ("chat", 1), fallback="code")]
    await gateway.start()
    assert (await gateway.chat("chat")).status_code == 200
    assert (len(engines[0].seen), len(engines[1].seen)) == (1, 0)
    gateway.members("chat", {})
    await kit.until(lambda: not len(gateway.router.dispatcher.pools["chat"].fleet))
    assert (await gateway.chat("chat")).status_code == 200
    assert [seen.json["model"] for seen in engines[1].seen] == ["code"]
    gateway.members("code", {})
    await kit.until(lambda: not len(gateway.router.dispatcher.pools["code"].fleet))
    refused = await gateway.chat("chat")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica")
    gateway.members("chat", at(engines[0]))
    await kit.until(lambda: len(gateway.router.dispatcher.pools["chat"].fleet))
    assert (await gateway.chat("chat")).status_code == 200
    assert len(engines[0].seen) == 2


async def test_stored_response_is_continued_in_its_pool(gateway: Gateway, engines: list[Any]) -> None:
    for pool, engine in zip(("chat", "code"), engines, strict=True):
        gateway.add(pool, at(engine), "chat", model="tiny", model_more={"aliases": ["chat"]})
    gateway.settings["sharedModels"] = [_shared("chat", ("chat", 1), ("code", 1))]
    await gateway.start()
    for number in range(8):
        first = {"model": "chat", "input": f"question {number}"}
        assert (await gateway.http.post("/v1/responses", json=first)).status_code == 200
        stored = next(engine for engine in engines if engine.seen)
        response = stored.seen[-1].json["request_id"]
        for engine in engines:
            engine.seen.clear()
        following = {"model": "chat", "input": f"another beginning {number}", "previous_response_id": response}
        assert (await gateway.http.post("/v1/responses", json=following)).status_code == 200
        assert [seen.json["previous_response_id"] for seen in stored.seen] == [response]
        stored.seen.clear()


async def test_stored_response_is_read_in_its_pool(gateway: Gateway, engines: list[Any]) -> None:
    for pool, engine in zip(("chat", "code"), engines, strict=True):
        gateway.add(pool, at(engine))
    await gateway.start()
    for pool, engine in zip(("chat", "code"), engines, strict=True):
        await gateway.http.post("/v1/responses", json={"model": pool, "input": "hello"})
        response = engine.seen[-1].json["request_id"]
        for other in engines:
            other.seen.clear()
            other.answer = _answers_by_id
        assert (await gateway.http.get(f"/v1/responses/{response}")).json() == {"id": "stored"}
        assert (await gateway.http.post(f"/v1/responses/{response}/cancel")).json() == {"id": "stored"}
        assert [seen.line.split()[1] for seen in engine.seen] == [
            f"/v1/responses/{response}", f"/v1/responses/{response}/cancel",
        ]  # fmt: skip
        for other in engines:
            other.answer = other.normally
    unknown = await gateway.http.get("/v1/responses/resp_1")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, 404)
    assert unknown.json()["error"]["message"] == "Response with id 'resp_1' not found."


async def _answers_by_id(seen: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"id":"stored"}')


@pytest.mark.parametrize("size", [100, 200_000])
async def test_forms_find_their_pool_and_split_by_their_files(gateway: Gateway, engines: list[Any], size: int) -> None:
    for pool, engine in zip(("chat", "code"), engines, strict=True):
        gateway.add(pool, at(engine), "chat", model=pool, model_more={"aliases": ["chat"]})
        engine.answer = _answers_by_id
    gateway.settings["sharedModels"] = [_shared("chat", ("chat", 1), ("code", 1))]
    await gateway.start()

    async def post(end: int, **fields: str) -> httpx.Response:
        files = {"file": ("a.wav", b"a" * size + bytes([end]))}
        return await gateway.http.post("/v1/audio/transcriptions", data=fields, files=files)

    for end in range(20):
        assert (await post(end, model="chat")).status_code == 200
    assert all(engine.seen for engine in engines)
    assert {b'name="model"\r\n\r\nchat\r\n' in seen.body for seen in engines[0].seen} == {True}
    assert {b'name="model"\r\n\r\ncode\r\n' in seen.body for seen in engines[1].seen} == {True}
    for fields, status, code in (({}, 400, "missing_field"), ({"model": "x"}, 404, "model_not_found")):
        refused = await post(0, **fields)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    wrong = await gateway.http.post("/v1/audio/translations", json={"model": "chat"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (415, "media_type")
