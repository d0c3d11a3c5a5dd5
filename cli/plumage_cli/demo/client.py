"""A load sent through the official `openai` client: streaming, many sessions at once, every outcome kept.

The client's own retries are off: what the fleet loses must be seen. An answer that is cut after it began cannot be
repeated by a router, only by who asked; it is asked again here and counted as cut.
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

_SECONDS = 60.0  # for one answer
_TRIES = 3  # how often a cut answer is asked for


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. ttft, latency: seconds, from its last try. cut: answers that broke off after they began. error: why
    there is no answer, None when there is one."""

    kind: str
    ttft: float
    latency: float
    prompt_tokens: int
    cached_tokens: int
    cut: int = 0
    error: str | None = None


class _Cut(Exception):  # noqa: N818 - caught here, never shown
    """An answer broke off after its first piece."""


async def send_load(
    url: str, model: str, sessions: list[Session], *, api_key: str = "demo", done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Send every session at its time; `done` is called after each request."""
    outcomes: list[Outcome] = []

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        done(outcome)

    http = openai.DefaultAsyncHttpxClient(trust_env=False)  # a proxy in the environment is not for this machine
    async with (
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=_SECONDS, http_client=http
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
    """The answer, the moment of its first piece, the usage."""
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
    except Exception as error:  # the client lets its transport's own errors through here, and they have no common base
        if not first:
            raise openai.OpenAIError(f"{type(error).__name__} before the first piece: {error}") from None
        raise _Cut(f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        await stream.close()
    if not first:
        raise openai.OpenAIError("the stream ended before its first piece")
    if not finished:
        raise _Cut("the stream ended before the answer did")
    return "".join(pieces), first, usage
