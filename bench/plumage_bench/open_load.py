"""Requests that reach a pool at a rate, whether or not it keeps up: Poisson arrivals of streamed chats from several
tenants, each with what it got and when."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

__all__ = ["Answer", "Tenant", "play"]

_WORDS: Final = ("plan", "read", "write", "check", "file", "test", "open", "close", "run", "build", "move", "merge")


@dataclass(frozen=True, slots=True)
class Tenant:
    """rate: requests a second. prompt_words and answer_tokens: the least and the most, drawn evenly. headers: what its
    requests carry, such as its key and its class.

    documents: each prompt begins with one of so many texts of `document_words` words, drawn evenly. With 0, prompts
    share nothing.
    """

    name: str
    rate: float
    prompt_words: tuple[int, int]
    answer_tokens: tuple[int, int]
    headers: dict[str, str] = field(default_factory=dict)
    documents: int = 0
    document_words: int = 0


@dataclass(slots=True)
class Answer:
    """Times are seconds since the load began; None for what did not happen in time. status: 0 if the connection
    broke. late: how long after its time it was sent. prompt, cached, answered: tokens by the engine's count, 0
    without a complete answer."""

    tenant: str
    sent: float
    status: int | None = None
    first: float | None = None
    ended: float | None = None
    prompt: int = 0
    cached: int = 0
    answered: int = 0
    late: float = 0.0


async def play(
    url: str, tenants: Sequence[Tenant], seconds: float, seed: str, after: float, *, begun: float = 0.0
) -> list[Answer]:
    """Sends for so many seconds, then gives up what has no end after `after` seconds more.

    begun: seconds after that in which answers with a first token may still end.

    Each request has a connection of its own: httpx searches its pool for each, which takes long with thousands.
    """
    found: list[Answer] = []
    unused = ssl.create_default_context()  # else each client would make one
    began = time.monotonic()
    tasks: dict[asyncio.Task[None], Answer] = {}

    # Longer than any request may last: else a late cancellation would look like a lost connection.
    limit = 2.0 * (seconds + after + begun)

    async def ask(body: dict[str, Any], headers: dict[str, str], answer: Answer) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=limit, verify=unused, trust_env=False) as http:
            answer.late = time.monotonic() - began - answer.sent
            await _ask(http, body, headers, answer, began)

    async def send(tenant: Tenant) -> None:
        rng, due = random.Random(f"{seed} {tenant.name}"), 0.0
        while (due := due + rng.expovariate(tenant.rate)) < seconds:
            await asyncio.sleep(began + due - time.monotonic())
            answer = Answer(tenant.name, due)
            found.append(answer)
            tasks[asyncio.create_task(ask(_body(rng, tenant), tenant.headers, answer))] = answer

    await asyncio.gather(*(send(tenant) for tenant in tenants))
    if tasks:
        await asyncio.wait(tasks, timeout=after)
        for task, answer in tasks.items():
            if answer.first is None:
                task.cancel()
        await asyncio.wait(tasks, timeout=begun)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def _body(rng: random.Random, tenant: Tenant) -> dict[str, Any]:
    """Its answer has exactly the drawn length."""
    text = f"{rng.random()} {_text(rng, rng.randint(*tenant.prompt_words))}"
    if tenant.documents:
        number = rng.randrange(tenant.documents)
        document = random.Random(f"{tenant.name} document {number}")
        text = f"{_text(document, tenant.document_words)}\n{text}"
    tokens = rng.randint(*tenant.answer_tokens)
    return {
        "model": "tiny-chat", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens,
        "ignore_eos": True, "messages": [{"role": "user", "content": text}],
    }  # fmt: skip


def _text(rng: random.Random, words: int) -> str:
    return " ".join(f"{rng.choice(_WORDS)}{rng.randrange(1000)}" for _ in range(words))


async def _ask(
    http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str], answer: Answer, began: float
) -> None:
    with suppress(httpx.TransportError):
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as got:
            if got.status_code == 200:
                async for line in got.aiter_lines():
                    if line.startswith("data: {"):
                        _read(line, answer, time.monotonic() - began)
            else:
                await got.aread()
            answer.status, answer.ended = got.status_code, time.monotonic() - began
            return
    answer.status, answer.ended = 0, time.monotonic() - began


def _read(line: str, answer: Answer, now: float) -> None:
    if answer.first is None:
        answer.first = now
    if '"usage"' in line and (usage := json.loads(line[6:]).get("usage")):
        answer.prompt, answer.answered = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
