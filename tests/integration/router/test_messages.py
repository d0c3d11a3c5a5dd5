"""Anthropic's Messages API through a router on a socket: raw requests, and Anthropic's own client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import pytest

TEXT = "a prompt of some words. " * 100
USAGE = {"input_tokens": 36, "output_tokens": 3, "cache_read_input_tokens": 64}


def events() -> list[bytes]:
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "tiny",
               "usage": {"input_tokens": 100, "output_tokens": 0}}  # fmt: skip
    sent: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one two"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
        {"type": "message_stop"},
    ]
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in sent]


def engine(kit: Any, parts: int = 6) -> Any:
    """Answers as vLLM does; a stream ends after so many events."""

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        if "count_tokens" in seen.line:
            data = b'{"input_tokens":7}'
        elif seen.json.get("stream"):
            writer.write(kit.STREAM_HEAD + b"".join(map(kit.chunked, events()[:parts])))
            if parts == 6:
                writer.write(b"0\r\n\r\n")
                return
            await writer.drain()
            writer.transport.abort()
            return
        else:
            data = json.dumps({"id": "m", "type": "message", "role": "assistant", "model": "tiny",
                               "content": [{"type": "text", "text": "one two"}], "stop_reason": "end_turn",
                               "usage": USAGE}).encode()  # fmt: skip
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(data) + data)

    return answer


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": TEXT}], **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_client_gets_answers(start: Any, kit: Any, stream: bool) -> None:
    running = await start(engines=1)
    running.engines[0].answer = engine(kit)
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="x", max_retries=0) as client:
        if stream:
            async with client.messages.stream(**body()) as answer:
                text = "".join([piece async for piece in answer.text_stream])
                usage = (await answer.get_final_message()).usage
        else:
            message = await client.messages.create(**body())
            text, usage = message.content[0].text, message.usage  # type: ignore[union-attr]
        counted = await client.messages.count_tokens(model="tiny", messages=body()["messages"])
    assert (text, counted.input_tokens) == ("one two", 7)
    assert (usage.output_tokens, usage.cache_read_input_tokens) == (3, 64)
    seen = running.engines[0].seen
    assert [one.line.split()[1] for one in seen] == ["/v1/messages", "/v1/messages/count_tokens"]
    assert "stream_options" not in seen[0].json
    assert await running.metric("plumage_router_prompt_tokens_total") == 100
    assert await running.metric("plumage_router_hit_tokens_actual_total") == 64


async def test_one_prompt_has_one_home_in_both_apis(start: Any, kit: Any) -> None:
    running = await start(engines=4, policy={"name": "Lbgr"})
    for one in running.engines:
        one.answer = engine(kit)
    await running.post(body(), path="/v1/messages")
    (home,) = [one for one in running.engines if one.seen]
    home.answer = home.normally
    for _ in range(5):
        assert (await running.post(kit.chat(TEXT))).status == 200
    assert len(home.seen) == 6


async def test_tenants_key_in_anthropics_header_and_its_salt(start: Any, kit: Any, tmp_path: Path) -> None:
    keys, salt = tmp_path / "keys", tmp_path / "salt"
    keys.write_text("team-a sk-a\n")
    salt.write_text("a salt key\n")
    running = await start(engines=1, auth={"apiKeysFile": str(keys)}, saltKeyFile=str(salt))
    running.engines[0].answer = engine(kit)
    assert (await running.post(body(), path="/v1/messages", x_api_key="sk-a")).status == 200
    assert running.engines[0].seen[0].json["cache_salt"]
    refused = await running.post(body(), path="/v1/messages", x_api_key="sk-b")
    assert (refused.status, refused.json["type"], refused.error["type"]) == (401, "error", "authentication_error")
    salted = await running.post(body(cache_salt="mine"), path="/v1/messages", x_api_key="sk-a")
    assert (salted.status, salted.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("changed", "status", "kind", "word"),
    [
        ({"model": "nobody"}, 404, "not_found_error", "nobody"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error", "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
         400, "invalid_request_error", "media URLs"),
        ({"chat_template": "x"}, 400, "invalid_request_error", "chat_template"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
    ],
)  # fmt: skip
async def test_errors_have_anthropics_form(
    start: Any, path: str, changed: dict[str, Any], status: int, kind: str, word: str
) -> None:
    running = await start(engines=1)
    sent = {name: given for name, given in body().items() if path == "/v1/messages" or name != "max_tokens"}
    got = await running.post(sent | changed, path=path)
    assert (got.status, got.json["type"], got.error["type"]) == (status, "error", kind)
    assert word in got.error["message"]
    assert not running.engines[0].seen


async def test_refusal_before_the_body_has_anthropics_form(start: Any) -> None:
    running = await start(engines=1, limits={"maxBodyBytes": 1000})
    got = await running.post(body(), path="/v1/messages")
    assert (got.status, got.json["type"], got.error["type"]) == (413, "error", "request_too_large")


async def test_stream_that_breaks_ends_with_an_error_event(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    running.engines[0].answer = engine(kit, parts=3)
    reader, writer = await running.connect()
    writer.write(kit.request(body(stream=True), path="/v1/messages"))
    async with asyncio.timeout(30):
        got = await reader.read()
    assert b'event: error\ndata: {"type":"error","error":{"type":"api_error"' in got


async def test_claude_codes_request_is_routed(start: Any, kit: Any) -> None:
    """Its query, its beta fields, its attribution line, and a tool's result."""
    running = await start(engines=1)
    running.engines[0].answer = engine(kit)
    call = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
    sent = body(
        system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "Be brief."}],
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [call]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon",
                                                "cache_control": {"type": "ephemeral"}}]}],
        tools=[{"name": "now", "description": "", "input_schema": {"type": "object", "properties": {}}}],
        metadata={"user_id": "u"}, context_management={"edits": []}, thinking={"type": "adaptive"}, stream=True,
    )  # fmt: skip
    got = await running.post(sent, path="/v1/messages?beta=true", anthropic_version="2023-06-01")
    assert got.status == 200
    assert running.engines[0].seen[0].json == sent
