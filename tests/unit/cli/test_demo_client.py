"""The demo's client: which answers it counts as lost or cut, and when it retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from plumage_cli.demo.client import Outcome, send_load
from plumage_cli.demo.load import Session
from plumage_cli.demo.summary import summarise

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ABORT = b"!"  # the connection breaks here; elsewhere it ends as streams do


def piece(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


USAGE: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
         "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11,
                   "prompt_tokens_details": {"cached_tokens": 4}}}  # fmt: skip
WHOLE = (
    HEAD + piece("one ") + piece("two", "stop") + b"data: " + json.dumps(USAGE).encode() + b"\n\n" + b"data: [DONE]\n\n"
)


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """A server with these answers, one per connection. Yields its address and a list that grows with each request."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        asked.append(length)
        answer = answers[len(asked) - 1]
        writer.write(answer.removesuffix(ABORT))
        await writer.drain()
        if answer.endswith(ABORT):
            writer.transport.abort()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def ask(*answers: bytes) -> tuple[Outcome, int]:
    async with answering(*answers) as (url, asked):
        session = Session(0.0, "few-shot", "S", ("Q",), (0.0,), 2)
        (outcome,) = await send_load(url, "m", [session], done=lambda _: None)
    return outcome, len(asked)


async def test_complete_answer() -> None:
    outcome, asked = await ask(WHOLE)
    assert (outcome.error, outcome.cut, asked) == (None, 0, 1)
    assert (outcome.prompt_tokens, outcome.cached_tokens) == (9, 4)
    assert 0 < outcome.ttft <= outcome.latency


@pytest.mark.parametrize(
    "begun", [HEAD, HEAD + b": ping\n\n", HEAD + b"data: [DONE]\n\n", HEAD + ABORT, ABORT], ids=len
)
async def test_answer_that_ends_before_its_first_piece_is_lost(begun: bytes) -> None:
    """A router could have retried it, so the client does not, and does not count it as cut."""
    outcome, asked = await ask(begun, WHOLE)
    assert outcome.error is not None
    assert (outcome.cut, asked) == (0, 1)
    assert summarise([outcome]).lost == 1


@pytest.mark.parametrize("end", [b"", ABORT], ids=len)
async def test_answer_that_breaks_off_later_is_cut_and_retried(end: bytes) -> None:
    outcome, asked = await ask(HEAD + piece("one ") + end, WHOLE)
    assert (outcome.error, outcome.cut, asked) == (None, 1, 2)


async def test_answer_that_always_breaks_off_is_lost_in_the_end() -> None:
    outcome, asked = await ask(*[HEAD + piece("one ")] * 3)
    assert outcome.error == "the stream ended before the response was complete"
    assert (outcome.cut, asked) == (3, 3)
