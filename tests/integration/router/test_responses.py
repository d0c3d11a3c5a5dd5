"""OpenAI's Responses API through a router on a socket: raw requests, and OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

TEXT = "a prompt of some words. " * 100
USAGE = {
    "input_tokens": 100, "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0}, "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 103,
}  # fmt: skip
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "one two", "annotations": []}]}  # fmt: skip
TOOL = {"type": "function", "name": "count", "parameters": {"type": "object", "properties": {"usage": {}}}}


def response(name: str, **more: Any) -> dict[str, Any]:
    fixed = {"object": "response", "created_at": 1, "model": "tiny", "parallel_tool_calls": True, "tool_choice": "auto"}
    return {"id": name, **fixed, "output": [], "tools": [TOOL], "status": "in_progress", "usage": None, **more}


def events(name: str) -> list[bytes]:
    whole = response(name, output=[ITEM], status="completed", usage=USAGE)
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    sent: list[dict[str, Any]] = [
        {"type": "response.created", "response": response(name)},
        {"type": "response.in_progress", "response": response(name)},
        {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
        {"type": "response.content_part.added", **place, "part": {**ITEM["content"][0], "text": ""}},  # type: ignore[index,dict-item]
        {"type": "response.output_text.delta", **place, "delta": "one two", "logprobs": []},
        {"type": "response.completed", "response": whole},
    ]
    return [
        f"event: {one['type']}\ndata: {json.dumps({**one, 'sequence_number': number})}\n\n".encode()
        for number, one in enumerate(sent)
    ]


def engine(kit: Any, parts: int = 6) -> Any:
    """Answers as vLLM does, under the id that the request names; a stream breaks after so many events."""

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        name = seen.json["request_id"]
        if not seen.json.get("stream"):
            data = json.dumps(response(name, output=[ITEM], status="completed", usage=USAGE)).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(data) + data)
            return
        writer.write(kit.STREAM_HEAD + b"".join(map(kit.chunked, events(name)[:parts])))
        if parts == 6:
            writer.write(b"0\r\n\r\n")
            return
        await writer.drain()
        writer.transport.abort()

    return answer


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": TEXT, **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_client_gets_answers(start: Any, kit: Any, stream: bool) -> None:
    running = await start(engines=1)
    running.engines[0].answer = engine(kit)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        if stream:
            async with client.responses.stream(model="tiny", input=TEXT) as answer:
                kinds = [event.type async for event in answer]
                got = await answer.get_final_response()
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
        else:
            got = await client.responses.create(model="tiny", input=TEXT)
    assert got.output_text == "one two"
    assert got.usage is not None
    assert got.usage.input_tokens_details.cached_tokens == 64
    (seen,) = running.engines[0].seen
    assert "stream_options" not in seen.json
    assert seen.json["request_id"] == got.id
    assert await running.metric("plumage_router_prompt_tokens_total") == 100
    assert await running.metric("plumage_router_hit_tokens_actual_total") == 64


async def test_one_prompt_has_one_home_in_both_apis(start: Any, kit: Any) -> None:
    running = await start(engines=4, policy={"name": "Lbgr"})
    for one in running.engines:
        one.answer = engine(kit)
    await running.post(body(), path="/v1/responses")
    (home,) = [one for one in running.engines if one.seen]
    home.answer = home.normally
    for _ in range(5):
        assert (await running.post(kit.chat(TEXT))).status == 200
    assert len(home.seen) == 6


async def test_response_is_continued_where_it_is_stored(start: Any, kit: Any) -> None:
    running = await start(engines=4, policy={"name": "RoundRobin"})
    for one in running.engines:
        one.answer = engine(kit)
    first = await running.post(body(), path="/v1/responses")
    (home,) = [one for one in running.engines if one.seen]
    name = first.json["id"]
    for _ in range(4):
        again = await running.post(body(input="go on", previous_response_id=name), path="/v1/responses")
        assert again.status == 200
        assert again.json["id"] != name
        name = again.json["id"]
    assert len(home.seen) == 5
    assert home.seen[1].json["previous_response_id"] == first.json["id"]


async def test_null_fields_and_a_salt_of_the_client(start: Any, kit: Any) -> None:
    """vLLM answers 500 to `truncation: null`."""
    running = await start(engines=2)
    for one in running.engines:
        one.answer = engine(kit)
    first = await running.post(body(truncation=None, background=None, cache_salt="a"), path="/v1/responses")
    (home,) = [one for one in running.engines if one.seen]
    assert home.seen[0].json.keys() == {"request_id", "model", "input", "cache_salt"}
    sent = body(previous_response_id=first.json["id"], client_metadata={"x": "y"})
    assert (await running.post(sent, path="/v1/responses")).status == 200


async def test_response_of_a_replica_that_takes_no_request_is_not_continued_elsewhere(start: Any, kit: Any) -> None:
    running = await start(engines=2, policy={"name": "RoundRobin"})
    for one in running.engines:
        one.answer = engine(kit)
    first = await running.post(body(), path="/v1/responses")
    (home,) = [one for one in running.engines if one.seen]
    await home.stop()
    sent = body(input="go on", previous_response_id=first.json["id"])
    for _ in range(8):
        again = await running.post(sent, path="/v1/responses")
        assert again.status in (502, 503)
    assert (again.status, again.error["param"]) == (503, "previous_response_id")
    assert all(not one.seen for one in running.engines if one is not home)


@pytest.mark.parametrize("name", ["resp_unknown", "x", "resp_" + "0" * 56, "resp_" + "é" * 56])
async def test_unknown_response_is_not_found(start: Any, name: str) -> None:
    running = await start(engines=2)
    got = await running.post(body(previous_response_id=name), path="/v1/responses")
    assert (got.status, got.error["code"]) == (404, "previous_response_not_found")
    assert "VLLM_ENABLE_RESPONSES_API_STORE" in got.error["message"]
    assert not any(one.seen for one in running.engines)


async def test_tenant_can_not_continue_the_response_of_another(start: Any, kit: Any, tmp_path: Path) -> None:
    keys, salt = tmp_path / "keys", tmp_path / "salt"
    keys.write_text("team-a sk-a\nteam-b sk-b\n")
    salt.write_text("a salt key\n")
    running = await start(engines=1, auth={"apiKeysFile": str(keys)}, saltKeyFile=str(salt))
    running.engines[0].answer = engine(kit)
    first = await running.post(body(request_id="resp_mine"), path="/v1/responses", authorization="Bearer sk-a")
    assert running.engines[0].seen[0].json["cache_salt"]
    assert running.engines[0].seen[0].json["request_id"] == first.json["id"] != "resp_mine"
    sent = body(previous_response_id=first.json["id"])
    theirs = await running.post(sent, path="/v1/responses", authorization="Bearer sk-b")
    assert (theirs.status, theirs.error["code"]) == (404, "previous_response_not_found")
    assert (await running.post(sent, path="/v1/responses", authorization="Bearer sk-a")).status == 200


async def test_engine_that_breaks_before_the_first_token_costs_the_client_nothing(start: Any, kit: Any) -> None:
    """vLLM sends two events before it computes anything."""
    running = await start(engines=2, policy={"name": "RoundRobin"})
    running.engines[0].answer = running.engines[1].answer = engine(kit, parts=2)
    broken = await running.post(body(stream=True), path="/v1/responses")
    assert broken.status == 502
    for one in running.engines:
        one.answer = engine(kit)
    assert all(one.seen for one in running.engines), "it was tried on both"


async def test_stream_that_breaks_ends_with_an_error_event(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    running.engines[0].answer = engine(kit, parts=4)
    reader, writer = await running.connect()
    writer.write(kit.request(body(stream=True), path="/v1/responses"))
    async with asyncio.timeout(30):
        got = await reader.read()
    assert b'event: error\ndata: {"type":"error","code":"truncated"' in got


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].arguments"),
        ({"input": [{"role": "user", "content": "x"}] * 4097}, "input"),
        ({"background": "yes"}, "background"),
        ({"chat_template": "x"}, "chat_template"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
         "messages[0].content[0].image_url"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_image", "image_url": "http://x"}]}]}, "messages[0].content[0].image_url"),
        ({"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}, {
            "type": "input_image", "image_url": "http://x"}]}]}, "messages[0].content[1].image_url"),
    ],
)  # fmt: skip
async def test_wrong_requests_reach_no_engine(start: Any, changed: dict[str, Any], param: str) -> None:
    running = await start(engines=1)
    got = await running.post(body() | changed, path="/v1/responses")
    assert (got.status, got.error["param"]) == (400, param)
    assert not running.engines[0].seen
