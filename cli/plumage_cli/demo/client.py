"""Sends a load with the official `openai` client: concurrent streaming sessions. Every outcome is kept.

The client's own retries are off, so that lost requests are visible. A router cannot repeat a response that breaks off
after its start. This client sends such a request again and counts it as cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai

from plumage_cli.demo.load import Session

__all__ = ["Outcome", "send_load"]

_SECONDS = 60.0  # timeout of one response
_TRIES = 3  # of a request whose responses break off


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. ttft, latency: seconds since its last try. cut: responses that broke off. error: why there is no
    response, None when there is one."""

    kind: str
    ttft: float
    latency: float
    prompt_tokens: int
    cached_tokens: int
    cut: int = 0
    error: str | None = None


class _Cut(Exception):  # noqa: N818 - caught here, never shown
    """A response broke off after its first chunk."""


async def send_load(url: str, model: str, sessions: list[Session], *, done: Callable[[Outcome], None]) -> list[Outcome]:
    """Send every session at its time. done: called after each request."""
    outcomes: list[Outcome] = []

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        done(outcome)

    http = openai.DefaultAsyncHttpxClient(trust_env=False)  # no proxy: the pool is on this machine
    async with (
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="demo", max_retries=0, timeout=_SECONDS, http_client=http
        ) as client,
        asyncio.TaskGroup() as users,
    ):
        start = time.monotonic()
        for session in sessions:
            await asyncio.sleep(max(0.0, start + session.at - time.monotonic()))
            users.create_task(_talk(client, model, session, note))
    return outcomes


async def _talk(client: openai.AsyncOpenAI, model: str, session: Session, note: Callable[[Outcome], None]) -> None:
    messages: list[dict[str, str]] = [{"role": "system", "content": session.system}]
    for turn, pause in zip(session.turns, session.pauses, strict=True):
        messages.append({"role": "user", "content": turn})
        answer, outcome = await _ask(client, model, session, messages)
        note(outcome)
        if outcome.error is not None:
            return
        messages.append({"role": "assistant", "content": answer})
        await asyncio.sleep(pause)


async def _ask(
    client: openai.AsyncOpenAI, model: str, session: Session, messages: list[dict[str, str]]
) -> tuple[str, Outcome]:
    cut = 0
    while True:
        start = time.monotonic()
        try:
            answer, first, usage = await _stream(client, model, session.answer_tokens, messages)
        except _Cut as error:
            cut += 1
            if cut < _TRIES:
                continue
            return "", Outcome(session.kind, 0.0, 0.0, 0, 0, cut, str(error))
        except openai.OpenAIError as error:
            return "", Outcome(session.kind, 0.0, 0.0, 0, 0, cut, f"{type(error).__name__}: {error}"[:200])
        details = getattr(usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        prompt = getattr(usage, "prompt_tokens", 0)
        return answer, Outcome(session.kind, first - start, time.monotonic() - start, prompt, cached, cut)


async def _stream(
    client: openai.AsyncOpenAI, model: str, tokens: int, messages: list[dict[str, str]]
) -> tuple[str, float, Any]:
    """The response text, the monotonic time of its first chunk, and its usage."""
    request: Any = {"model": model, "messages": messages, "max_tokens": tokens}
    stream = await client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    pieces: list[str] = []
    first, usage, finished = 0.0, None, False
    try:
        async for chunk in stream:
            first = first or time.monotonic()
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finished = finished or choice.finish_reason is not None
    except Exception as error:  # the client raises errors of its transport here, which have no common base
        if not first:
            raise openai.OpenAIError(f"{type(error).__name__} before the first chunk: {error}") from None
        raise _Cut(f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        await stream.close()
    if not first:
        raise openai.OpenAIError("the stream ended before its first chunk")
    if not finished:
        raise _Cut("the stream ended before the response was complete")
    return "".join(pieces), first, usage
