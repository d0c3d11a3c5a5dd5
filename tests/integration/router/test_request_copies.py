"""Copies of a model's requests for a pool whose answers nobody gets, and what they may not do to the requests."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forks
from support.multi_pool_router import ADMIN, Gateway, at, await_health, simulators, words
from support.otlp import received_spans
from support.ports import free_port
from support.scrapes import families

from plumage_router.proxy.attempt import Attempt
from plumage_router.proxy.copied_request import CopiedRequest

PROMPT = "The same long beginning. " * 200
MIRROR = {"pool": "code"}


def mirror(gateway: Gateway, engines: list[Any], percent: int = 100, **more: Any) -> None:
    """The first engine's pool has the model `chat`, whose requests are copied to the second's. more: settings of
    that."""
    gateway.add("chat", at(engines[0]), "chat", model="tiny", model_more={"aliases": ["chat"]})
    gateway.add("code", at(engines[1]), "chat", model="next", model_more={"aliases": ["chat"]}, **more)
    shared = {"name": "chat", "pools": [{"pool": "chat"}], "requestMirror": {**MIRROR, "percent": percent}}
    gateway.settings["sharedModels"] = [shared]


def outcomes(gateway: Gateway) -> dict[str, int]:
    """Copies, by outcome."""
    return {key[2]: count for key, count in gateway.router.dispatcher.copies.outcomes.items()}


def in_flight(gateway: Gateway) -> int:
    return len(gateway.router.dispatcher.copies)


async def hanging(seen: Any, writer: Any) -> None:
    """An engine that takes a request, and sends nothing."""
    await asyncio.Event().wait()


async def answers_ok(seen: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


async def test_all_requests_of_a_share_of_conversations_are_copied(
    gateway: Gateway, engines: list[Any], kit: Any
) -> None:
    mirror(gateway, engines, percent=50)
    await gateway.start()
    assert await gateway.models() == ["chat"]
    for number in range(40):
        for turn in range(2):
            answer = await gateway.chat("chat", f"question {number}", temperature=turn, stream=bool(turn))
            assert answer.status_code == 200
            assert "chat-0" in answer.text, "clients get the answers of the model's own pool"
    await kit.until(lambda: not in_flight(gateway))
    asked = [seen.json["messages"][0]["content"] for seen in engines[0].seen]
    copied = Counter(seen.json["messages"][0]["content"] for seen in engines[1].seen)
    assert len(asked) == 80
    assert len(copied) in range(8, 33), "20 ± 3.7 standard deviations"
    assert set(copied.values()) == {2}, "both turns or none"
    assert outcomes(gateway) == {"complete": copied.total()}
    seen = engines[1].seen[0]
    assert (seen.json["model"], seen.headers["x-plumage-copy"]) == ("next", "true")
    twin = next(one for one in engines[0].seen if one.json["messages"] == seen.json["messages"])
    assert seen.headers["x-request-id"] == twin.headers["x-request-id"]
    assert "x-plumage-copy" not in twin.headers

    found = families((await gateway.http.get("/metrics", headers=ADMIN)).text)
    [sample] = found["plumage_router_copied_requests_total"].samples
    assert sample.labels == {"model": "chat", "pool": "code", "outcome": "complete"}
    requests = {
        one.labels.get("pool", ""): one.value
        for name in ("plumage_router_requests_total", "plumage_router_prompt_tokens_total")
        for one in found[name].samples
    }
    assert (requests["chat"], requests["code"]) == (8000, 100 * copied.total()), "each pool counts its own answers"
    ttft = {
        one.labels.get("pool", ""): one.value
        for one in found["plumage_router_ttft_seconds"].samples
        if one.name.endswith("_count")
    }
    assert (ttft["chat"], ttft["code"]) == (40, copied.total() / 2)

    gateway.settings["sharedModels"][0]["requestMirror"]["percent"] = 0
    gateway.save()
    await kit.until(lambda: gateway.router.dispatcher.routes["chat"].percent == 0)
    assert (await gateway.chat("chat", f"question {next(iter(copied)).split()[1]}")).status_code == 200
    assert outcomes(gateway) == {"complete": copied.total()}
    status = (await gateway.http.get("/plumage/v1/status", headers=ADMIN)).json()
    assert status["models"]["chat"]["requestMirror"] == {"pool": "code", "percent": 0}


@pytest.mark.interpreted
async def test_copy_begins_after_its_request_was_sent(
    gateway: Gateway, engines: list[Any], kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a later turn of the event loop than the request's own steps."""
    steps: list[str] = []
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    for owner, name in ((Attempt, "start"), (CopiedRequest, "start")):
        original = getattr(owner, name)

        def noted(self: Any, original: Any = original, owner: Any = owner) -> None:
            steps.append(f"{owner.__name__} {getattr(self, 'replica', None) and self.replica.id} {turn}")
            original(self)

        monkeypatch.setattr(owner, name, noted)
    mirror(gateway, engines)
    await gateway.start()
    asyncio.get_running_loop().call_soon(count)
    assert (await gateway.chat("chat")).status_code == 200
    await kit.until(lambda: outcomes(gateway))
    order = [step.rsplit(" ", 1)[0] for step in steps]
    assert order == ["Attempt chat-0", "CopiedRequest None", "Attempt code-0"]
    sent, begun = (int(step.rsplit(" ", 1)[1]) for step in steps[:2])
    assert begun > sent


async def test_requests_are_answered_while_their_copies_hang(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    mirror(gateway, engines)
    gateway.settings["limits"] = {"maxInFlight": 24}  # an eighth of it: three copies
    engines[1].answer = hanging
    await gateway.start()
    for number in range(5):
        answer = await gateway.chat("chat", f"question {number}", stream=bool(number % 2))
        assert answer.status_code == 200
    await kit.until(lambda: len(engines[1].seen) == 3)
    assert (in_flight(gateway), outcomes(gateway)) == (3, {"full": 2})
    status = (await gateway.http.get("/plumage/v1/status", headers=ADMIN)).json()
    assert (status["copiesInFlight"], status["inFlight"]) == (3, {"chat": 0, "code": 3})
    engines[0].answer = hanging
    asked = [asyncio.create_task(gateway.chat("chat", str(number))) for number in range(24)]
    await kit.until(lambda: len(gateway.router.dispatcher.pools["chat"].in_flight) == 24)
    refused = await gateway.chat("chat")
    assert refused.json()["error"]["code"] == "overloaded", "copies take no place of a request"
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_copy_without_a_first_token_times_out(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    mirror(gateway, engines, timeouts={"firstByte": 0.2})
    engines[1].answer = hanging
    await gateway.start()
    assert words(await gateway.chat("chat", stream=True)) == "one two chat-0"
    await kit.until(lambda: outcomes(gateway))
    assert outcomes(gateway) == {"timeout": 1}
    await kit.until(engines[1].closed.is_set)
    assert len(engines[1].seen) == 1


async def test_copy_that_stops_within_its_answer_times_out(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    async def stopping(seen: Any, writer: Any) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("one ")))
        await asyncio.Event().wait()

    mirror(gateway, engines, timeouts={"idle": 0.2})
    engines[1].answer = stopping
    await gateway.start()
    assert words(await gateway.chat("chat", stream=True)) == "one two chat-0"
    await kit.until(lambda: outcomes(gateway))
    assert outcomes(gateway) == {"timeout": 1}
    assert gateway.router.dispatcher.pools["code"].metrics.truncated == 1


async def test_pool_that_is_down_costs_requests_nothing(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    mirror(gateway, engines, breaker={"failures": 1})
    await engines[1].stop()
    await gateway.start()
    answers = [await gateway.chat("chat", str(number)) for number in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 6
    await kit.until(lambda: sum(outcomes(gateway).values()) == 6)
    found = outcomes(gateway)
    assert set(found) <= {"failed", "no_replica"}
    assert found["no_replica"] > 0, "its breaker is open"
    assert gateway.router.dispatcher.pools["chat"].metrics.errors == {}
    gateway.members("code", {})
    await kit.until(lambda: not len(gateway.router.dispatcher.pools["code"].fleet))
    assert (await gateway.chat("chat")).status_code == 200
    await kit.until(lambda: outcomes(gateway)["no_replica"] > found["no_replica"])


async def test_copy_is_sent_once_only(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    """A client's own request is tried on another replica; the copy ends with the first one."""
    other = kit.Engine("code-1")
    await other.start()

    async def broken(seen: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 2\r\n\r\n{}")

    async def cut(seen: Any, writer: Any) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("one ")))
        await writer.drain()
        writer.transport.abort()

    mirror(gateway, engines)
    gateway.members("code", {**at(engines[1]), **at(other)})
    await gateway.start()
    for number, answer in enumerate((broken, cut)):
        engines[1].answer = other.answer = answer
        assert words(await gateway.chat("chat", f"question {number}", stream=True)) == "one two chat-0"
        await kit.until(lambda wanted=number + 1: outcomes(gateway).get("failed") == wanted)
    assert len(engines[1].seen) + len(other.seen) == 2
    metrics = gateway.router.dispatcher.pools["code"].metrics
    assert (metrics.errors, metrics.truncated, metrics.retries) == ({"upstream_failed": 1}, 1, {})


async def test_ended_copies_leave_nothing_behind(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    """Nor do copies that the pool's own queue turned away."""
    classes = [{"name": "chat", "objective": 0.3, "weight": 1}]
    queue = {"classes": classes, "maxSeconds": 0.3, "maxRequests": 2, "engineQueue": 0.01}
    mirror(gateway, engines, flowControl=queue)
    await gateway.start()
    for number in range(30):
        if number == 10:
            await kit.until(lambda: not in_flight(gateway))
            engines[1].answer = hanging
        asked = [gateway.chat("chat", f"{number} {one}", stream=bool(one % 2)) for one in range(4)]
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 4
    pool = gateway.router.dispatcher.pools["code"]
    gateway.router.dispatcher.copies.cancel()
    assert sum(outcomes(gateway).values()) == 120
    assert set(outcomes(gateway)) == {"complete", "full", "canceled"}
    assert (len(pool.in_flight), len(pool.flow_control), gateway.router.dispatcher.body_memory.used) == (0, 0, 0)
    assert [(one.load.routed, one.load.starting, round(one.load.decode_blocks, 6)) for one in pool.fleet] == [(0, 0, 0)]
    engines[1].answer = engines[1].normally
    assert (await gateway.chat("chat", "last")).status_code == 200
    await kit.until(lambda: in_flight(gateway) == 0)


async def test_refusals_of_engine_and_of_the_copys_pool_are_counted(
    gateway: Gateway, engines: list[Any], kit: Any
) -> None:
    async def refusing(seen: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 400 x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    mirror(gateway, engines)
    gateway.pools["chat"]["allowedRequestFields"] = ["priority"]
    engines[1].answer = refusing
    await gateway.start()
    assert (await gateway.chat("chat")).status_code == 200
    await kit.until(lambda: outcomes(gateway) == {"refused": 1})
    assert (await gateway.chat("chat", priority=1)).status_code == 200, "its own pool allows the field"
    await kit.until(lambda: outcomes(gateway) == {"refused": 2})
    assert len(engines[1].seen) == 1


async def test_copy_goes_on_without_its_client(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    """Of a client that left, and of one that reads too slowly."""
    finish = asyncio.Event()

    async def later(seen: Any, writer: Any) -> None:
        await finish.wait()
        await engines[1].normally(seen, writer)

    mirror(gateway, engines)
    engines[0].answer = kit.endless
    engines[1].answer = later
    await gateway.start()
    port = int(gateway.router.addresses[0].rpartition(":")[2])
    sent = kit.request({**kit.chat("hello", stream=True), "model": "chat"})
    _, gone = await asyncio.open_connection("127.0.0.1", port)
    gone.write(sent)
    await kit.until(lambda: len(engines[1].seen) == 1)
    gone.transport.abort()
    await kit.until(engines[0].closed.is_set)
    _, slow = await asyncio.open_connection("127.0.0.1", port)
    slow.transport.pause_reading()
    slow.write(sent)
    await kit.until(lambda: len(engines[1].seen) == 2)
    finish.set()
    await kit.until(lambda: outcomes(gateway) == {"complete": 2})
    slow.transport.abort()


async def test_pool_that_leaves_cancels_its_copies_only(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    finish = asyncio.Event()

    async def later(seen: Any, writer: Any) -> None:
        await finish.wait()
        await engines[0].normally(seen, writer)

    mirror(gateway, engines)
    engines[0].answer, engines[1].answer = later, hanging
    await gateway.start()
    asked = asyncio.create_task(gateway.chat("chat", stream=True))
    await kit.until(lambda: engines[1].seen)
    del gateway.pools["code"]
    gateway.save()
    await kit.until(lambda: outcomes(gateway))
    assert outcomes(gateway) == {"canceled": 1}
    await kit.until(engines[1].closed.is_set)
    await kit.until(lambda: not gateway.router.dispatcher.ending)
    second = asyncio.create_task(gateway.chat("chat"))
    await kit.until(lambda: outcomes(gateway).get("no_replica"))
    finish.set()
    assert words(await asked) == "one two chat-0"
    assert (await second).status_code == 200


async def test_mirror_that_is_switched_off_lets_its_copies_end(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    finish = asyncio.Event()

    async def later(seen: Any, writer: Any) -> None:
        await finish.wait()
        await engines[1].normally(seen, writer)

    mirror(gateway, engines)
    engines[1].answer = later
    await gateway.start()
    assert (await gateway.chat("chat")).status_code == 200
    await kit.until(lambda: engines[1].seen)
    gateway.settings["sharedModels"][0]["requestMirror"] = None
    gateway.save()
    await kit.until(lambda: not gateway.router.dispatcher.routes["chat"].mirror)
    assert (await gateway.chat("chat")).status_code == 200
    finish.set()
    await kit.until(lambda: outcomes(gateway) == {"complete": 1})


async def test_stop_cancels_copies(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    mirror(gateway, engines)
    engines[1].answer = hanging
    await gateway.start()
    assert (await gateway.chat("chat")).status_code == 200
    await kit.until(lambda: engines[1].seen)
    await gateway.http.aclose()
    async with asyncio.timeout(20):
        await gateway.router.stop(drain_seconds=300)  # no client is left, so it takes no time
    assert (in_flight(gateway), outcomes(gateway)) == (0, {"canceled": 1})
    await kit.until(engines[1].closed.is_set)


async def test_only_admitted_requests_are_copied(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    """And a copy costs its tenant nothing. Each pool has a salt of its own."""
    keys = gateway.folder / "keys"
    keys.write_text("acme key-a\n")
    gateway.settings["auth"] = {"apiKeysFile": str(keys), "adminKeyFile": str(gateway.folder / "admin")}
    mirror(gateway, engines)
    for pool in ("chat", "code"):
        (gateway.folder / f"salt-{pool}").write_text(f"salt of {pool}\n")
        gateway.pools[pool] |= {"saltKeyFile": str(gateway.folder / f"salt-{pool}"), "usageLog": False}
    gateway.pools["chat"]["quotas"] = [{"tenant": "acme", "requestsPerMinute": 2}]
    gateway.pools["code"]["quotas"] = [{"tenant": "acme", "requestsPerMinute": 1, "models": ["none"]}]
    await gateway.start()
    assert (await gateway.chat("chat")).status_code == 401
    gateway.http.headers["authorization"] = "Bearer key-a"
    assert (await gateway.chat("chat", best_of=0, nobody=1)).status_code == 400
    for _ in range(2):
        assert (await gateway.chat("chat")).status_code == 200
    assert (await gateway.chat("chat")).status_code == 429
    await kit.until(lambda: outcomes(gateway) == {"complete": 2})
    salts = [{seen.json["cache_salt"] for seen in engine.seen} for engine in engines]
    assert [len(found) for found in salts] == [1, 1]
    assert salts[0] != salts[1]
    assert "authorization" not in engines[1].seen[0].headers, "no engine gets a client's key"
    pools = gateway.router.dispatcher.pools
    assert [sum(used.requests for used in pools[pool].usage.sums.values()) for pool in ("chat", "code")] == [2, 0]


async def test_requests_with_an_effect_or_without_the_device_are_not_copied(
    gateway: Gateway, engines: list[Any], kit: Any
) -> None:
    mirror(gateway, engines)
    await gateway.start()
    stored = {"model": "chat", "input": "hello"}
    post = gateway.http.post
    assert (await post("/v1/responses", json=stored)).status_code == 200
    response = engines[0].seen[-1].json["request_id"]
    following = {**stored, "store": False, "previous_response_id": response}
    assert (await post("/v1/responses", json=following)).status_code == 200
    engines[0].answer = answers_ok
    assert (await gateway.http.get(f"/v1/responses/{response}")).status_code == 200
    engines[0].answer = engines[0].normally
    assert (await post("/tokenize", json={"model": "chat", "prompt": "hello"})).status_code == 200
    assert (await post("/v1/responses", json={**stored, "store": False})).status_code == 200
    assert (await post("/v1/embeddings", json={"model": "chat", "input": "hello"})).status_code == 200
    await kit.until(lambda: outcomes(gateway) == {"complete": 2})
    assert [seen.line.split()[1] for seen in engines[1].seen] == ["/v1/responses", "/v1/embeddings"]


@pytest.mark.parametrize("size", [100, 200_000])
async def test_large_bodies_and_forms_are_copied_whole(
    gateway: Gateway, engines: list[Any], kit: Any, size: int
) -> None:
    mirror(gateway, engines)
    await gateway.start()
    assert (await gateway.chat("chat", "x" * size)).status_code == 200
    for engine in engines:
        engine.answer = answers_ok
    files = {"file": ("a.wav", b"a" * size)}
    sent = await gateway.http.post("/v1/audio/transcriptions", data={"model": "chat"}, files=files)
    assert sent.status_code == 200
    await kit.until(lambda: outcomes(gateway) == {"complete": 2})
    chat, form = engines[1].seen
    assert chat.json == {**engines[0].seen[0].json, "model": "next"}
    assert form.body.count(b"a" * size) == 1
    assert b"\r\n\r\nnext\r\n" in form.body
    assert gateway.router.dispatcher.body_memory.used == 0


async def test_copies_take_only_memory_that_is_free(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    mirror(gateway, engines)
    gateway.settings["limits"] = {"maxBufferedBytes": 1_600_000}
    engines[1].answer = hanging
    await gateway.start()
    memory = gateway.router.dispatcher.body_memory
    assert (await gateway.chat("chat", "a" * 150_000)).status_code == 200
    await kit.until(lambda: engines[1].seen)
    assert 150_000 < memory.used < 151_000
    assert (await gateway.chat("chat", "b" * 60_000)).status_code == 200
    assert outcomes(gateway) == {"memory": 1}, "an eighth is 200,000 bytes"

    engines[0].answer = hanging
    asked = [asyncio.create_task(gateway.chat("chat", f"{number}" * 360_000)) for number in range(4)]
    await kit.until(lambda: len(gateway.router.dispatcher.pools["chat"].in_flight) == 3)
    await kit.until(lambda: outcomes(gateway)["memory"] >= 2)
    assert in_flight(gateway) == 0, "a client's body needed the memory of the copy"
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await kit.until(lambda: not memory.used)


async def test_copy_has_a_trace_that_links_to_its_request(gateway: Gateway, engines: list[Any], kit: Any) -> None:
    with received_spans() as collector:
        mirror(gateway, engines)
        gateway.settings["tracing"] = {
            "endpoint": collector.endpoint, "samplingRatePerMillion": 0, "service": "front-gateway",
        }  # fmt: skip
        await gateway.start()
        assert (await gateway.chat("chat")).status_code == 200
        await kit.until(lambda: outcomes(gateway) == {"complete": 1})
        gateway.http.headers["traceparent"] = f"00-{'a' * 32}-{'b' * 16}-01"
        assert (await gateway.chat("chat", stream=True)).status_code == 200
        await kit.until(lambda: outcomes(gateway) == {"complete": 2})
        await gateway.router.dispatcher.tracing.close()
    [request] = collector.named("POST /v1/chat/completions")
    [copy] = collector.named("COPY /v1/chat/completions")
    [attempt] = [span for span in collector.spans if span.parent == copy.id]
    assert (copy.links, copy.parent) == ([request.id], "")
    assert copy.trace != request.trace
    assert (copy.attributes["plumage.pool"], copy.attributes["gen_ai.usage.output_tokens"]) == ("code", 3)
    assert engines[1].seen[1].headers["traceparent"] == f"00-{copy.trace}-{attempt.id}-01"
    assert "traceparent" not in engines[1].seen[0].headers, "its request was not traced"


def test_real_gateway_copies_to_real_engines(tmp_path: Path) -> None:
    """Its pool learns which prefixes are cached there. A dead engine and a hanging one cost clients nothing, and the
    router ends in order."""
    with simulators("tiny", "next") as started:
        (stable, _), (canary, engine) = started.items()
        made = Gateway(tmp_path)
        made.add("chat", {"chat-0": stable}, "chat", model="tiny", model_more={"aliases": ["chat"]})
        made.add("code", {"code-0": canary}, "chat", model="next", model_more={"aliases": ["chat"]})
        shared = {"name": "chat", "pools": [{"pool": "chat"}], "requestMirror": MIRROR}
        made.settings |= {"sharedModels": [shared], "listen": {"port": (port := free_port())}}
        router = forks.start("plumage_router", f"--config={made.save()}")
        url = f"http://127.0.0.1:{port}"
        try:
            await_health(url, router)
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                for _ in range(2):
                    assert _asks(client) == 200
                    _until(client, lambda found: found["copies_in_flight"] == 0)
                found = _until(client, lambda found: found.get("complete") == 2)
                assert found["hit_tokens_actual code"] > 0, "the second turn found the first one's prefix"
                assert found["hit_tokens_predicted code"] > 0
                engine.send_signal(signal.SIGSTOP)
                assert _asks(client) == 200
                assert _until(client, lambda found: found["copies_in_flight"] == 1)["complete"] == 2
                engine.kill()
                _until(client, lambda found: found["copies_in_flight"] == 0 and found.get("failed") == 1)
                assert _asks(client) == 200
                _until(client, lambda found: found.get("failed", 0) + found.get("no_replica", 0) == 2)
            router.terminate()
            assert router.wait(60) == 0
        finally:
            router.kill()
            router.wait(60)


def _asks(client: httpx.Client) -> int:
    body = {"model": "chat", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    answer = client.post("/v1/chat/completions", json=body)
    assert words(answer)
    return answer.status_code


def _until(client: httpx.Client, holds: Any) -> dict[str, float]:
    """The counts of copies once they are so: by outcome, and those of each pool."""
    deadline = time.monotonic() + 60
    while True:
        pages = families(client.get("/metrics", headers=ADMIN).text)
        found = {one.labels["outcome"]: one.value for one in pages["plumage_router_copied_requests_total"].samples}
        found["copies_in_flight"] = pages["plumage_router_copies_in_flight"].samples[0].value
        for name in ("hit_tokens_actual", "hit_tokens_predicted"):
            samples = pages[f"plumage_router_{name}_total"].samples
            found |= {f"{name} {one.labels.get('pool', '')}": one.value for one in samples}
        if holds(found):
            return found
        assert time.monotonic() < deadline, json.dumps(found)
        time.sleep(0.05)
