"""Transcriptions and translations through a router on a socket: forms, streams and errors, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from plumage.multipart import boundary_of, find_parts
from plumage_router.http.time_slicing import run_now

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
SOUND = bytes(range(256)) * 64 + b"\r\n--x"
USAGE = {"prompt_tokens": 150, "completion_tokens": 2, "total_tokens": 152}


def form(seen: Any) -> dict[str, bytes]:
    parts = run_now(find_parts(seen.body, boundary_of(seen.headers["content-type"].encode())))
    return {part.name: seen.body[part.start : part.end] for part in parts}


def chunk(choices: Any, **more: Any) -> bytes:
    fixed = {"id": "trsc-1", "object": "transcription.chunk", "created": 1, "model": "tiny"}
    return f"data: {json.dumps({**fixed, 'choices': choices, **more})}\n\n".encode()


def engine(kit: Any) -> Any:
    """Answers as vLLM does."""

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        fields = form(seen)
        if fields.get("stream") != b"true":
            data = json.dumps({"text": "one two", "usage": {"type": "duration", "seconds": 3}}).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(data) + data)
            return
        events = [chunk([{"delta": {"content": word}, "finish_reason": None}]) for word in ("one", " two")]
        if fields.get("stream_include_usage") == b"true":
            events.append(chunk([], usage=USAGE))
        writer.write(kit.STREAM_HEAD + b"".join(map(kit.chunked, [*events, b"data: [DONE]\n\n"])) + b"0\r\n\r\n")

    return answer


async def running_with(start: Any, kit: Any, engines: int = 1, **config: Any) -> Any:
    running = await start(engines=engines, **config)
    for one in running.engines:
        one.answer = engine(kit)
    return running


async def post(
    running: Any, path: str = PATHS[0], *, key: str = "", file: Any = SOUND, **fields: Any
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await client.post(path, data=fields, files={"file": ("a.wav", file, "audio/wav")}, headers=headers)


async def test_openai_client_transcribes_and_translates(start: Any, kit: Any) -> None:
    running = await running_with(start, kit)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        made = await client.audio.transcriptions.create(
            model="tiny", file=("a.wav", SOUND), language="en", prompt="Größe", temperature=0.5,
            timestamp_granularities=["word", "segment"], response_format="json",
        )  # fmt: skip
        with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI's client says so since it has better models
            translated = await client.audio.translations.create(model="tiny", file=("a.wav", SOUND))
    assert made.text == translated.text == "one two"
    seen, other = running.engines[0].seen
    assert (seen.line, other.line) == tuple(f"POST {path} HTTP/1.1" for path in PATHS)
    assert form(seen) == {
        "model": b"tiny", "file": SOUND, "language": b"en", "prompt": "Größe".encode(), "temperature": b"0.5",
        "timestamp_granularities[]": b"segment", "response_format": b"json",
    }  # fmt: skip


@pytest.mark.parametrize("wanted", [False, True])
async def test_stream_has_the_usage_that_the_client_asked_for(start: Any, kit: Any, wanted: bool) -> None:
    running = await running_with(start, kit)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        more = {"stream_include_usage": "true"} if wanted else {}
        stream = await client.audio.transcriptions.create(
            model="tiny", file=("a.wav", SOUND), stream=True, extra_body=more
        )
        events: list[Any] = [event async for event in stream]
    assert "".join(event.choices[0]["delta"]["content"] for event in events if event.choices) == "one two"
    assert [event.usage for event in events if not event.choices] == ([USAGE] if wanted else [])
    assert form(running.engines[0].seen[0])["stream_include_usage"] == b"true", "the router counts tokens by it"
    assert form(running.engines[0].seen[0])["file"] == SOUND


async def test_stream_counts_for_its_tenant(start: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme sk-a\n")
    running = await running_with(start, kit, auth={"apiKeysFile": str(keys)})
    assert (await post(running, model="tiny")).status_code == 401
    assert (await post(running, key="sk-a", model="tiny", stream="true")).status_code == 200
    pool = running.router.pool
    ((pair, used),) = pool.usage.sums.items()
    assert (pair, used.prompt, used.output, used.estimated) == (("acme", "tiny"), 150, 2, 0)


async def test_stream_counts_in_no_figure_of_speed(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, policy={"name": "Lbgr"})
    for _ in range(3):
        assert (await post(running, model="tiny", stream="true")).status_code == 200
    assert await running.metric("plumage_router_requests_total") == 3
    assert await running.metric("plumage_router_ttft_seconds_count") == 0
    assert await running.metric("plumage_router_latency_seconds_count") == 0
    assert await running.metric("plumage_router_usage_missing_total") == 0


async def test_answer_without_tokens_is_counted_by_the_size_of_the_file(start: Any, kit: Any) -> None:
    running = await running_with(start, kit)
    assert (await post(running, model="tiny", file=b"a" * 64_001)).status_code == 200
    (used,) = running.router.pool.usage.sums.values()
    assert (used.prompt, used.estimated) == (201, 1)


async def test_quota_of_tokens_takes_the_file(start: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme sk-a\n")
    quotas = [{"tenant": "acme", "tokensPerMinute": 600}]
    running = await running_with(start, kit, auth={"apiKeysFile": str(keys)}, quotas=quotas)
    assert (await post(running, key="sk-a", model="tiny", file=b"a" * 64_000)).status_code == 200
    refused = await post(running, key="sk-a", model="tiny", file=b"a" * 64_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_alias_becomes_the_models_name(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, model={"aliases": ["whisper-1"]})
    assert (await post(running, model="whisper-1", stream="true", prompt="x")).status_code == 200
    assert form(running.engines[0].seen[0]) == {
        "stream_include_usage": b"true", "model": b"tiny", "stream": b"true", "prompt": b"x", "file": SOUND,
    }  # fmt: skip


async def test_requests_spread_by_load_and_leave_a_dead_engine(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, engines=3, policy={"name": "Lbgr"})
    await asyncio.gather(*(post(running, model="tiny") for _ in range(15)))
    assert all(one.seen for one in running.engines)
    await running.engines[0].stop()
    for _ in range(4):
        assert (await post(running, model="tiny")).status_code == 200


async def test_large_file_passes_and_one_above_the_limit_is_refused(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, limits={"maxBodyBytes": 6_000_000, "maxBufferedBytes": 64_000_000})
    sound = b"\r\n--\r\nsound" * 500_000
    assert (await post(running, model="tiny", file=sound)).status_code == 200
    assert form(running.engines[0].seen[0])["file"] == sound
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.audio.transcriptions.create(model="tiny", file=("a.wav", b"a" * 6_000_001))
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
    assert running.router.pool.body_memory.used == 0


async def test_answer_of_the_engine_reaches_the_client(start: Any, kit: Any) -> None:
    running = await start(engines=1)

    async def refuse(seen: Any, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"Maximum file size exceeded","type":"BadRequestError","code":400}}'
        head = b"HTTP/1.1 400 x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)

    running.engines[0].answer = refuse
    got = await post(running, model="tiny")
    assert (got.status_code, got.json()["error"]["message"]) == (400, "Maximum file size exceeded")


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({}, 400, "missing_field", "model"),
        ({"model": ""}, 400, "missing_field", "model"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"model": ["tiny", "tiny"]}, 400, "duplicate_key", "model"),
        ({"model": "tiny", "prompt": "a" * 70_000}, 400, "too_many", "prompt"),
        ({"model": "tiny", "stream": "maybe"}, 400, "invalid_type", "stream"),
        ({"model": "tiny", "temperature": "nan"}, 400, "invalid_type", "temperature"),
        ({"model": "tiny", "seed": "1_0"}, 400, "invalid_type", "seed"),
        ({"model": "tiny", "response_format": "xml"}, 400, "invalid_type", "response_format"),
        ({"model": "tiny", "timestamp_granularities[]": ["x", "word"]}, 400, "invalid_type",
         "timestamp_granularities[]"),
        ({"model": "tiny", "vllm_xargs": "{}"}, 400, "field_not_allowed", "vllm_xargs"),
        ({"model": "tiny", "use_beam_search": "true"}, 400, "field_not_allowed", "use_beam_search"),
        ({"model": "tiny", "watermarking": "false"}, 400, "field_not_allowed", "watermarking"),
        ({"model": "tiny", "priority": "-1"}, 400, "field_not_allowed", "priority"),
        ({"model": "tiny", "surprise": "1"}, 400, "field_not_allowed", "surprise"),
        ({"model": "tiny", "timestamp_granularities[]": ["word"] * 70}, 400, "invalid_form", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", PATHS)
async def test_wrong_fields_are_named(
    start: Any, kit: Any, path: str, fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    running = await running_with(start, kit)
    got = await post(running, path, **fields)
    error = got.json()["error"]
    if path == PATHS[1] and param == "timestamp_granularities[]":
        code = "field_not_allowed"
    assert (got.status_code, error["code"], error["param"]) == (status, code, param)
    assert not running.engines[0].seen


async def test_pool_may_allow_further_fields(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, allowedRequestFields=["surprise"])
    assert (await post(running, model="tiny", surprise="1")).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body", "status", "code"),
    [
        ("application/json", b'{"model": "tiny"}', 415, "media_type"),
        ("application/x-www-form-urlencoded", b"model=tiny", 415, "media_type"),
        ("multipart/form-data", b"x", 400, "invalid_form"),
        ("multipart/form-data; boundary=x; charset=utf-16", b"x", 400, "invalid_form"),
        ("multipart/form-data; boundary=x", b"", 400, "invalid_form"),
        ("multipart/form-data; boundary=x", b'{"model": "tiny"}', 400, "invalid_form"),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--x--', 400, "missing_field"),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\ntext\r\n--x--', 400, "invalid_type"),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--x--', 400, "invalid_type"),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\ntiny\r\n--x--', 400,
         "invalid_type"),
    ],
)  # fmt: skip
async def test_bad_forms_are_refused(start: Any, kit: Any, kind: str, body: bytes, status: int, code: str) -> None:
    running = await running_with(start, kit)
    got = await running.post(body, path=PATHS[0], content_type=kind)
    assert (got.status, got.error["code"]) == (status, code)
    assert got.error["message"]
    assert not running.engines[0].seen


async def test_empty_file_is_refused(start: Any, kit: Any) -> None:
    running = await running_with(start, kit)
    got = await post(running, model="tiny", file=b"")
    assert (got.status_code, got.json()["error"]["param"]) == (400, "file")


async def test_other_paths_of_audio_name_what_is_served(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    speech = await running.post({"model": "tiny", "input": "a"}, path="/v1/audio/speech")
    assert (speech.status, speech.error["code"]) == (404, "not_served")
    assert PATHS[0] in speech.error["message"]
    got = await running.send(kit.request({}, path=PATHS[0], method="GET"))
    assert (got.status, got.error["code"]) == (405, "method_not_allowed")


async def test_form_that_two_engines_fail_on_is_quarantined(start: Any, kit: Any) -> None:
    running = await start(engines=3)

    async def fail(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")

    for one in running.engines:
        one.answer = fail
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--x\r\n' \
           b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\na\r\n--x--'  # fmt: skip
    kind = {"content_type": "multipart/form-data; boundary=x"}
    assert (await running.post(body, path=PATHS[0], **kind)).status == 502
    got = await running.post(body, path=PATHS[0], **kind)
    assert (got.status, got.error["code"]) == (422, "quarantined")
