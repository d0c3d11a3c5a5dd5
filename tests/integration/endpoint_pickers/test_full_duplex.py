"""Bodies and phases in FULL_DUPLEX_STREAMED mode: Envoy forwards what the picker sends back, and nothing else.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/http/ext_proc/v3/processing_mode.proto
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

TEXTS = {"one byte": "x", "8 KB": "word " * 1600, "450 KB": "longer " * 64_000, "several bytes": "žluťoučký 🐎 " * 900}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("piece", [1009, 16_384, 65_536])
async def test_request_body_comes_back_unchanged(picker: Any, text: str, piece: int) -> None:
    exchange = picker.open()
    body = exchange.chat(text)
    await exchange.request_headers()
    await exchange.request_body(body, piece=piece)
    assert (await exchange.destination())[0]
    assert await exchange.body("request_body", len(body)) == body


async def test_body_may_come_byte_by_byte(picker: Any) -> None:
    exchange = picker.open()
    body = exchange.chat("short")
    await exchange.request_headers()
    await exchange.request_body(body, piece=1)
    assert (await exchange.destination())[0]
    assert await exchange.body("request_body", len(body)) == body


async def test_empty_last_piece_ends_the_body(picker: Any) -> None:
    exchange = picker.open()
    body = exchange.chat()
    await exchange.request_headers()
    await exchange.request_body(body, end=False)
    await exchange.request_body(b"", end=True)
    assert (await exchange.destination())[0]
    assert await exchange.body("request_body", len(body)) == body


async def test_headers_are_answered_once_and_first(picker: Any) -> None:
    exchange = picker.open()
    body = exchange.chat("word " * 30_000)
    await exchange.request_headers()
    await exchange.request_body(body)
    phases, size = [], 0
    while size < len(body):
        answer = await exchange.answer()
        phases.append(answer.WhichOneof("response"))
        size += len(answer.request_body.response.body_mutation.streamed_response.body)
    assert phases[0] == "request_headers"
    assert set(phases[1:]) == {"request_body"}


async def test_trailers_follow_the_body(picker: Any) -> None:
    """With trailers no piece of the body is the last one."""
    exchange = picker.open()
    body = exchange.chat("word " * 10_000)
    await exchange.request_headers()
    await exchange.request_body(body, end=False)
    await exchange.request_trailers()
    assert (await exchange.destination())[0]
    assert await exchange.body("request_body", len(body), end=False) == body
    await exchange.part("request_trailers")


async def test_response_passes_piece_by_piece(picker: Any) -> None:
    """A stream's events are not held back: each piece is answered before the next one comes."""
    exchange = picker.open()
    await exchange.pick()
    await exchange.response_headers(kind="text/event-stream")
    await exchange.part("response_headers")
    for number in range(20):
        event = b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number
        await exchange.response_body(event)
        assert await exchange.body("response_body", len(event), end=False) == event
    await exchange.response_body(b"data: [DONE]\n\n", end=True)
    assert await exchange.body("response_body", 14) == b"data: [DONE]\n\n"
    await exchange.call.done_writing()
    assert await exchange.finished() is grpc.StatusCode.OK


async def test_response_may_end_with_its_headers_or_with_trailers(picker: Any) -> None:
    first, second = picker.open(), picker.open()
    await first.pick()
    await first.response_headers(204, end=True)
    await first.part("response_headers")
    await second.pick()
    await second.response_headers()
    await second.part("response_headers")
    await second.response_body(b"{}")
    assert await second.body("response_body", 2, end=False) == b"{}"
    await second.response_trailers()
    await second.part("response_trailers")


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_errors_of_engines_pass(picker: Any, status: int) -> None:
    exchange = picker.open()
    await exchange.pick()
    await exchange.response_headers(status)
    await exchange.part("response_headers")
    await exchange.response_body(b'{"error": {}}', end=True)
    assert await exchange.body("response_body", 13) == b'{"error": {}}'


async def test_large_response_passes_unchanged(picker: Any) -> None:
    exchange = picker.open()
    await exchange.pick()
    await exchange.response_headers()
    await exchange.part("response_headers")
    body = bytes(range(256)) * 8_000
    found = asyncio.ensure_future(exchange.body("response_body", len(body)))
    for at in range(0, len(body), 32_768):
        await exchange.response_body(body[at : at + 32_768], end=at + 32_768 >= len(body))
    assert await found == body


async def test_parallel_calls_keep_their_bodies(picker: Any) -> None:
    """Pieces of a hundred requests, interleaved over one connection."""

    async def one(number: int) -> None:
        exchange = picker.open()
        body = exchange.chat(f"call {number} " * (50 + number))
        await exchange.request_headers()
        for at in range(0, len(body), 700):
            await exchange.request_body(body[at : at + 700], end=at + 700 >= len(body))
            await asyncio.sleep(0)
        assert (await exchange.destination())[0]
        assert await exchange.body("request_body", len(body)) == body
        await exchange.respond(b"answer %d" % number)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(one(number))
