"""A wrong request gets OpenAI's error object and the right status, and does not affect other requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest


def _is_error(answer: Any, status: int, code: str) -> bool:
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"}
    assert (answer.status, error["code"]) == (status, code), error
    return True


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b'"text"', "invalid_json"),
        (b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}', "invalid_json"),
        (b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}', "invalid_json"),
        (b'{"model":"tiny","temperature":NaN,"messages":[]}', "invalid_json"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "invalid_json"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "invalid_json"),
        (b'{"model":"tiny","model":"tiny","messages":[{"role":"user","content":"x"}]}', "duplicate_key"),
        (b'{"model":"tiny","messages":[{"role":"user","role":"user","content":"x"}]}', "duplicate_key"),
        (b'{"model":"tiny","mod\\u0065l":"x","messages":[{"role":"user","content":"x"}]}', "duplicate_key"),
        (
            b'{"model":"tiny","user":"a","user":"\\u0022\\u0022","messages":[{"role":"user","content":"x"}]}',
            "duplicate_key",
        ),
    ],
)
async def test_unreadable_json_is_refused(start: Any, body: bytes, code: str) -> None:
    running = await start(engines=1)
    assert _is_error(await running.post(body), 400, code)
    assert running.engines[0].seen == []


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": 7}, "model", "invalid_type"),
        ({"model": None}, "model", "missing_field"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"max_tokens": "many"}, "max_tokens", "invalid_type"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"temperature": [1]}, "temperature", "invalid_type"),
        ({"messages": "hello"}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "invalid_type"),
        ({"messages": [7]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_type",
        ),
        ({"stream_options": []}, "stream_options", "invalid_type"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "invalid_type"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"stream_options": {"continuous_usage_stats": []}}, "stream_options.continuous_usage_stats", "invalid_type"),
        ({"stream_options": {"include": True}}, "stream_options.include", "field_not_allowed"),
        ({"kv_transfer_params": {}}, "kv_transfer_params", "field_not_allowed"),
        ({"vllm_xargs": {}}, "vllm_xargs", "field_not_allowed"),
        ({"chat_template": "{{ x }}"}, "chat_template", "field_not_allowed"),
        ({"priority": 1}, "priority", "field_not_allowed"),
        ({"surprise": None}, "surprise", "field_not_allowed"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template", "field_not_allowed"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]},
            "messages[0].content[0].image_url",
            "media_url",
        ),
    ],
)
async def test_wrong_fields_are_refused_by_name(
    start: Any, kit: Any, change: dict[str, Any], param: str, code: str
) -> None:
    running = await start(engines=1)
    answer = await running.post(kit.chat(**change))
    assert answer.status == 400
    assert (answer.error["param"], answer.error["code"]) == (param, code)
    assert running.engines[0].seen == []


@pytest.mark.parametrize("prompt", [7, "", [], [[]], ["a", 1], [1.5], [-1], {"a": 1}, None])
async def test_prompt_of_wrong_type_is_refused(start: Any, prompt: Any) -> None:
    running = await start(engines=1)
    answer = await running.post({"model": "tiny", "prompt": prompt}, path="/v1/completions")
    assert (answer.status, answer.error["param"]) == (400, "prompt")


async def test_unknown_model_is_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    answer = await running.post(kit.chat(model="other"))
    assert _is_error(answer, 404, "model_not_found")
    assert answer.error["param"] == "model"


async def test_too_large_body_is_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxBodyBytes": 1000})
    assert _is_error(await running.post(kit.chat("x" * 2000)), 413, "body_too_large")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    assert _is_error(await running.send(head + b"7d0\r\n" + b"x" * 2000), 413, "body_too_large")
    await kit.until(lambda: running.router.pool.body_memory.used == 0)


async def test_prompt_over_context_is_refused(start: Any) -> None:
    running = await start(engines=1)
    ids = await running.post({"model": "tiny", "prompt": [5] * 40_000}, path="/v1/completions")
    assert _is_error(ids, 400, "context_length_exceeded")
    text = await running.post({"model": "tiny", "prompt": "word " * 800_000}, path="/v1/completions")
    assert _is_error(text, 400, "context_length_exceeded")


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5\r\ncontent-length: 5\r\n",
        b"content-length: -5\r\n",
        b"content-length: 5x\r\n",
        b"transfer-encoding: chunked, gzip\r\n",
        b"transfer-encoding: chunked, chunked\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"x-broken\r\n",
        b"x-folded: a\r\n b\r\n",
        b"x-null: a\x00b\r\n",
    ],
)
async def test_ambiguous_framing_is_refused(start: Any, head: bytes) -> None:
    running = await start(engines=1)
    data = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n5\r\n{}   \r\n0\r\n\r\n"
    reader, writer = await running.connect()
    writer.write(data)
    everything = await asyncio.wait_for(reader.read(), 30)
    assert everything.startswith(b"HTTP/1.1 400 ")
    assert everything.count(b"HTTP/1.1") == 1, "nothing behind a broken message may be taken for a request"
    assert json.loads(everything.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "line", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"]
)
async def test_malformed_http_is_refused(start: Any, line: bytes) -> None:
    running = await start(engines=1)
    assert (await running.send(line)).status == 400


async def test_request_without_host_is_refused(start: Any) -> None:
    running = await start(engines=1)
    assert _is_error(await running.send(b"GET /health HTTP/1.1\r\n\r\n"), 400, "malformed_http")


async def test_header_flood_is_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxHeaderBytes": 4096, "maxHeaders": 20})
    many = b"".join(b"x-%d: y\r\n" % number for number in range(50))
    assert _is_error(
        await running.send(b"GET /health HTTP/1.1\r\nhost: x\r\n" + many + b"\r\n"), 431, "headers_too_large"
    )
    large = b"x-large: " + b"y" * 5000 + b"\r\n"
    assert _is_error(
        await running.send(b"GET /health HTTP/1.1\r\nhost: x\r\n" + large + b"\r\n"), 431, "headers_too_large"
    )
    address = b"GET /" + b"y" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    assert _is_error(await running.send(address), 431, "headers_too_large")


async def test_endless_header_is_refused(start: Any) -> None:
    running = await start(engines=1, limits={"maxHeaderBytes": 4096})
    reader, writer = await running.connect()
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nx-endless: ")
    sent = 0
    while not reader.at_eof() and sent < 10_000_000:
        writer.write(b"y" * 4096)
        sent += 4096
        await asyncio.sleep(0.001)
        if reader._buffer:  # type: ignore[attr-defined]
            break
    assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 431")


async def test_endless_trailer_is_refused(start: Any) -> None:
    running = await start(engines=1, limits={"maxHeaderBytes": 4096})
    reader, writer = await running.connect()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"2\r\n{}\r\n0\r\nx-endless: ")
    for _ in range(8):
        writer.write(b"y" * 1024)
        await asyncio.sleep(0.02)
    assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "line", [b"x-%02d: " % 0 + b"v" * 20_000, b"\r\n".join(b"x-%02d: %b" % (n, b"v" * 1000) for n in range(20))]
)
@pytest.mark.parametrize("piece", [500, 1007, 30_000])
async def test_headers_are_counted_once(start: Any, kit: Any, line: bytes, piece: int) -> None:
    running = await start(engines=1, limits={"maxHeaderBytes": 24_000})
    data = b"GET /health HTTP/1.1\r\nhost: x\r\n" + line + b"\r\n\r\n"
    reader, writer = await running.connect()
    for at in range(0, len(data), piece):
        writer.write(data[at : at + piece])
        await asyncio.sleep(0.005)
    assert (await kit.read_answer(reader)).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        "authorization: Bearer a\r\nauthorization: Bearer b\r\n",
        "host: y\r\n",
        "content-type: text/plain\r\ncontent-type: a\r\n",
    ],
)
async def test_repeated_single_header_is_refused(start: Any, lines: str) -> None:
    running = await start(engines=1)
    data = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{lines}content-length: 2\r\n\r\n{{}}".encode()
    assert _is_error(await running.send(data), 400, "repeated_header")


async def test_other_media_types_are_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    assert _is_error(await running.post(kit.chat(), content_type="text/plain"), 415, "media_type")
    assert _is_error(await running.post(kit.chat(), content_encoding="gzip"), 415, "content_encoding")


@pytest.mark.parametrize("lines", ["gzip, chunked", "GZIP,Chunked", "gzip\r\ntransfer-encoding: chunked"])
async def test_transfer_coded_body_is_refused(start: Any, kit: Any, lines: str) -> None:
    running = await start(engines=1)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: {lines}\r\n\r\n".encode()
    body = json.dumps(kit.chat()).encode()
    assert _is_error(await running.send(head + kit.chunked(body) + b"0\r\n\r\n"), 501, "transfer_encoding")
    assert running.engines[0].seen == []
    plain = head.replace(lines.encode(), b"Chunked") + kit.chunked(body) + b"0\r\n\r\n"
    assert (await running.send(plain)).status == 200


async def test_connect_is_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    assert _is_error(await running.send(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n"), 400, "connect")
    hidden = b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n" + kit.request(kit.chat())
    assert _is_error(await running.send(hidden), 400, "connect")
    assert running.engines[0].seen == []


async def test_unknown_expectation_is_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxBodyBytes": 1000})
    body = json.dumps(kit.chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: %b\r\ncontent-length: %d\r\n\r\n"
    reader, writer = await running.connect()
    writer.write(head % (b"100-continue", len(body)))
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await kit.read_answer(reader)).status == 200
    assert _is_error(await running.send(head % (b"100-continue", 5000)), 413, "body_too_large")
    assert _is_error(await running.send(head % (b"200-ok", 10)), 417, "expectation")


async def test_unknown_paths_and_methods_are_refused(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    assert _is_error(await running.post(kit.chat(), path="/v1/responses/resp_1/other"), 404, "not_served")
    for path in ("docs", "redoc", "openapi.json"):
        answer = await running.send(f"GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert _is_error(answer, 404, "not_found"), "what there is to call is no business of clients"
    assert _is_error(await running.send(b"DELETE /health HTTP/1.1\r\nhost: x\r\n\r\n"), 405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/completions?a=b"])
async def test_completions_need_post(start: Any, kit: Any, path: str) -> None:
    running = await start(engines=1)
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = await running.send(kit.request(kit.chat(), path=path, method=method))
        assert _is_error(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"
    reader, writer = await running.connect()
    writer.write(kit.request(b"", path=path, method="HEAD", connection="close"))
    head = await asyncio.wait_for(reader.read(), 30)
    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"allow: POST\r\n" in head
    assert head.endswith(b"\r\n\r\n"), "an answer to HEAD has no body"
    assert running.engines[0].seen == []


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/completions/", "/health/", "/plumage/v1/status/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_trailing_slash_does_not_redirect(start: Any, kit: Any, path: str, method: str) -> None:
    """A redirect would carry the host that the client wrote, and send prompt and key there."""
    running = await start(engines=1)
    body = json.dumps(kit.chat()).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: evil.example\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    answer = await running.send(head + body)
    assert _is_error(answer, 404, "not_found")
    assert "location" not in answer.headers
    assert running.engines[0].seen == []


async def test_router_serves_after_bad_input(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    for bad in (b"{", b"\xff\xfe", b"GET", b"[]"):
        await running.post(bad)
    assert (await running.post(kit.chat())).status == 200
    assert running.router.pool.body_memory.used == 0
    assert not running.router.pool.in_flight


NAME = "n" * 300_000
ECHOES: dict[str, dict[str, Any]] = {
    "field": {NAME: 1},
    "option": {"stream": True, "stream_options": {NAME: True}},
    "part": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", NAME: 1}]}]},
    "model": {"model": NAME},
    "unprintable model": {"model": "\U000e0001" * 1000},
    "template": {"messages": [{"role": "assistant", "tool_calls": NAME}]},
}


@pytest.mark.parametrize("wrong", ECHOES.values(), ids=ECHOES)
async def test_error_repeats_little_of_the_request(start: Any, kit: Any, wrong: dict[str, Any]) -> None:
    running = await start(engines=1)
    answer = await running.post({**kit.chat(), **wrong})
    assert answer.status in (400, 404)
    assert len(answer.body) < 8192
    assert answer.error["code"]
    assert answer.error["param"]


async def test_long_path_is_not_repeated(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    answer = await running.send(b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"p" * 30_000))
    assert answer.status == 404
    assert len(answer.body) < 4096


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": 1}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls"),
        ({"role": "nobody", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": [{"type": "nothing"}]}, "messages[0].content[0].type"),
    ],
)
async def test_wrong_message_is_named(start: Any, kit: Any, message: dict[str, Any], param: str) -> None:
    running = await start(engines=1)
    answer = await running.post({"model": "tiny", "messages": [message]})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert answer.error["code"] in ("chat_template", "invalid_type")
