"""Large bodies are read in slices, and small requests are served between; hostile bodies are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from plumage_router.http.time_slicing import LARGE


@pytest.mark.interpreted
async def test_small_request_is_served_between_slices_of_large_one(
    start: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumage_router.http.time_slicing.TURN", 0.0)
    monkeypatch.setattr("plumage_router.http.time_slicing.pause_after", lambda _: 0.2)
    running = await start(engines=1, model={"maxLength": 2_000_000})
    pool, engine = running.router.pool, running.engines[0]
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat("word " * 200_000)))
    await kit.until(lambda: len(pool.time_slicer))
    assert len(pool.in_flight) == 1
    assert (await running.post(kit.chat("small"))).status == 200
    async with asyncio.timeout(60):
        assert (await kit.read_answer(reader)).status == 200
    assert [len(seen.body) > LARGE for seen in engine.seen] == [False, True]


async def test_large_body_of_aborted_request_is_not_read(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxBodyBytes": 16 << 20, "maxBufferedBytes": 64 << 20})
    pool = running.router.pool
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat("word " * 800_000)))
    await kit.until(lambda: len(pool.time_slicer))
    writer.transport.abort()
    await kit.until(lambda: not len(pool.time_slicer))
    assert not pool.in_flight
    assert pool.body_memory.used == 0
    assert not running.engines[0].seen


CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PART, USER = b'{"type":"text","text":""}', b'"messages":[{"role":"user","content":'
HOSTILE = {
    "parts": (CHAT, USER + b"[" + b",".join([PART] * 600_000) + b"]}]", "too_many"),
    "objects": (CHAT, USER + b'"x"}],"user":"\\u0022","metadata":{"a":[' + b"{}," * 3_000_000 + b"{}]}", "too_many"),
    "ids": (COMPLETION, b'"prompt":[' + b"1," * 8_000_000 + b"1]", "too_many"),
    "cut": (COMPLETION, b'"truncate_prompt_tokens":9,"prompt":"' + b"x " * 7_000_000 + b'"', "context_length_exceeded"),
}


@pytest.mark.parametrize(("path", "body", "code"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_body_is_refused_while_small_requests_continue(
    start: Any, kit: Any, path: str, body: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"maxBodyBytes": 16 << 20, "maxBufferedBytes": 64 << 20}
    running = await start(engines=1, limits=limits, model={"maxLength": 4096})
    small = kit.request(b'{"model":"tiny","messages":[{"role":"user","content":"small"}]}')
    hostile = kit.request(b'{"model":"tiny",%b}' % body, path=path)

    async def arrive_slowly() -> Any:
        """The last byte waits until small requests were answered beside the others."""
        reader, writer = await running.connect()
        writer.write(hostile[:-1])
        await writer.drain()
        await beside.wait()
        writer.write(hostile[-1:])
        async with asyncio.timeout(60):
            return await kit.read_answer(reader)

    if code == "too_many":
        parse = orjson.loads
        monkeypatch.setattr(
            "plumage_router.request.body.orjson.loads",
            lambda data: pytest.fail("parsed") if len(data) > LARGE else parse(data),
        )
    beside = asyncio.Event()
    refused = asyncio.create_task(arrive_slowly())
    await kit.until(lambda: running.router.pool.body_memory.used > len(body) // 2)
    assert [(await running.send(small)).status for _ in range(5)] == [200] * 5
    assert not refused.done()
    beside.set()
    answers = await asyncio.gather(*(running.send(small) for _ in range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    answer = await refused
    assert (answer.status, answer.error["code"]) == (400, code)
    assert len(running.engines[0].seen) == 25, "the small ones"


LONG = {"stop": ["x"] * 5000, "logit_bias": {str(n): 1 for n in range(5000)}, "tools": [{}] * 5000}


@pytest.mark.parametrize(("field", "entries"), LONG.items(), ids=LONG)
async def test_long_lists_are_refused_early(start: Any, kit: Any, field: str, entries: Any) -> None:
    running = await start(engines=1)
    answer = await running.post(kit.chat(**{field: entries}))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "too_many", field)


async def test_too_many_content_parts_are_refused_early(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    parts = [{"type": "text", "text": "x"}] * 3000 + [{"type": "nonsense"}]
    messages = [{"role": "user", "content": parts[:3000]}] * 2 + [{"role": "user", "content": parts}]
    answer = await running.post({"model": "tiny", "messages": messages})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "too_many", "messages")
