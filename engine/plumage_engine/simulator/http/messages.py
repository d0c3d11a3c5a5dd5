"""Anthropic's Messages API of the simulator, as vLLM 0.32 serves it (`entrypoints/anthropic`): `POST /v1/messages` and
`POST /v1/messages/count_tokens`.

A request becomes the chat that vLLM makes of it (`plumage.rendering.anthropic`), and runs as a chat completion does.
Here are the rest of its fields, its answers, the events of its streams, and its errors. As in vLLM, fields that the
API does not have (seed, ignore_eos, …) are ignored, and a stream has no `ping`. All errors have Anthropic's form;
vLLM answers a body of the wrong shape in OpenAI's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from plumage_engine.simulator.http.completions import ClientGoneError, Completions, Scope, read
from plumage_engine.simulator.http.prompts import Prompts
from plumage_engine.simulator.http.protocol import ApiError, Generation, read_body, read_generation
from plumage_engine.simulator.http.replies import Reply
from plumage_engine.simulator.job import Job

__all__ = ["CountTokens", "MessageReply", "Messages", "error_body", "usage_of"]

_PASSED = {
    "max_tokens": "max_tokens", "stop_sequences": "stop", "temperature": "temperature", "top_p": "top_p",
    "top_k": "top_k", "stream": "stream",
}  # fmt: skip
_USAGE = {"include_usage": True, "continuous_usage_stats": True}
_LEAST_THOUGHT = 1024  # tokens, the least thinking.budget_tokens
_TEXT_MARK = "\x00"


class Messages(Completions):
    """/v1/messages."""

    def _read(self, data: bytes, scope: Scope) -> Generation:
        return _generation(self._prompts, read_body(data))

    def _reply(self, job: Job, generation: Generation) -> Reply:
        return MessageReply(str(job.request.request_id), generation.model)

    def _error_body(self, error: ApiError) -> bytes:
        return error_body(error)


class CountTokens:
    """/v1/messages/count_tokens. As for `/tokenize`, a prompt may be longer than the context."""

    def __init__(self, prompts: Prompts, max_body_bytes: int) -> None:
        self._prompts = prompts
        self._most = max_body_bytes

    async def count(self, request: Request) -> Response:
        try:
            body = read_body(await read(request.receive, self._most))
            count = len(await self._prompts.tokens_of(_counted(self._prompts, body)))
        except ClientGoneError:
            return Response(status_code=499)
        except ApiError as error:
            return Response(error_body(error), error.status, media_type="application/json")
        answer = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
        return Response(orjson.dumps(answer), media_type="application/json")


class MessageReply(Reply):
    """The frame of one message. A stream's methods are called in the order of its events."""

    def __init__(self, request_id: str, model: str) -> None:
        super().__init__(request_id, model, chat=True)
        self._message = {"id": request_id, "type": "message", "role": "assistant", "content": [], "model": model}
        self._started = False  # whether the text block was begun
        self._stopped: dict[str, str | None] = {}

    def whole(self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any]) -> bytes:
        stop = {name: value for name, value in _stop(finish_reason, stop_reason).items() if value is not None}
        content = [{"type": "text", "text": text}]
        return orjson.dumps({**self._message, "content": content, **stop, "usage": usage_of(usage)})

    def opening(self, usage: dict[str, Any] | None = None) -> bytes:
        message = {**self._message, "stop_reason": None, "stop_sequence": None, "usage": usage_of(usage)}
        return _event("message_start", message=message)

    def delta(self, text: str, usage: dict[str, Any] | None = None) -> bytes:
        """More text, after the start of its block; nothing for no text. No usage is in it."""
        if not text:
            return b""
        start = b"" if self._started else _BLOCK_START
        self._started = True
        return start + _BEFORE + orjson.dumps(text) + _AFTER

    def last(
        self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any] | None = None
    ) -> bytes:
        self._stopped = _stop(finish_reason, stop_reason)
        return self.delta(text)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The end of the block, and why the message ended."""
        stop = _BLOCK_STOP if self._started else b""
        return stop + _event("message_delta", delta=self._stopped, usage=usage_of(usage))

    def end(self) -> bytes:
        return _MESSAGE_STOP


def usage_of(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """A chat's usage in Anthropic's form, where `input_tokens` leaves out those that the cache had.
    `cache_read_input_tokens` is there only if the usage has `prompt_tokens_details`."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    given, completion = usage["prompt_tokens"], usage["completion_tokens"]
    details = usage.get("prompt_tokens_details")
    if details is None:
        return {"input_tokens": given, "output_tokens": completion}
    cached = details["cached_tokens"]
    return {
        "input_tokens": max(0, given - cached), "output_tokens": completion, "cache_read_input_tokens": cached,
    }  # fmt: skip


def error_body(error: ApiError) -> bytes:
    """An error as Anthropic's error object, with vLLM's type."""
    return orjson.dumps({"type": "error", "error": {"type": error.kind, "message": error.message}})


def _stop(finish_reason: str, stop_reason: str | None) -> dict[str, str | None]:
    """Why a message ended, of a chat's `finish_reason` and the stop string that was met."""
    if finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "end_turn" if stop_reason is None else "stop_sequence", "stop_sequence": stop_reason}


def _event(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps({"type": name, **fields}) + b"\n\n"


_BLOCK_START = _event("content_block_start", content_block={"type": "text", "text": ""}, index=0)
_BEFORE, _AFTER = _event("content_block_delta", delta={"type": "text_delta", "text": _TEXT_MARK}, index=0).split(
    orjson.dumps(_TEXT_MARK)
)
_BLOCK_STOP = _event("content_block_stop", index=0)
_MESSAGE_STOP = _event("message_stop")


def _generation(prompts: Prompts, body: Mapping[str, Any]) -> Generation:
    """What a request asks for, as a chat. ApiError names the wrong field."""
    chat = _chat(prompts, body)
    most = body.get("max_tokens")
    if type(most) is not int or most < 1:
        raise ApiError(400, f"max_tokens must be a whole number of at least 1, got {most!r}", param="max_tokens")
    if not isinstance(body.get("stop_sequences"), list | None):
        raise ApiError(400, "stop_sequences must be a list of strings", param="stop_sequences")
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= most:
        raise ApiError(400, "thinking.budget_tokens must be less than max_tokens", param="thinking")
    if (body.get("output_config") or {}).get("format"):
        message = "output_config.format is not supported: a simulated answer has no structure; leave it out"
        raise ApiError(400, message, param="output_config")
    chat.update((name, body[ours]) for ours, name in _PASSED.items() if body.get(ours) is not None)
    if chat.get("stream"):
        chat["stream_options"] = _USAGE
    return read_generation(chat, chat=True)


def _counted(prompts: Prompts, body: Mapping[str, Any]) -> Generation:
    """The chat whose prompt is counted. The prompt does not depend on a forced tool, which is no error here."""
    chat = _chat(prompts, body)
    chat.pop("tool_choice", None)
    return read_generation(chat, chat=True)


def _chat(prompts: Prompts, body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a chat's body that its prompt depends on."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise ApiError(400, "model must be a non-empty string", param="model")
    chat = prompts.as_chat(body)
    thinking = body.get("thinking")
    if thinking is not None:
        _check_thinking(thinking)
    return chat


def _check_thinking(thinking: Mapping[str, Any]) -> None:
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise ApiError(400, "thinking.type must be enabled, disabled or adaptive", param="thinking")
    if kind == "enabled" and (type(budget) is not int or budget < _LEAST_THOUGHT):
        message = f"thinking.budget_tokens must be a whole number of at least {_LEAST_THOUGHT}"
        raise ApiError(400, message, param="thinking")
