"""The OpenAI API as far as the simulator speaks it: request bodies in, errors out.

Fields without effect here (temperature, top_p, user, …) are accepted and ignored, as vLLM ignores unknown fields.
Fields that the simulator can't honour (n > 1, logprobs, structured output, …) are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
from starlette.requests import Request

__all__ = ["ApiError", "Generation", "StreamUsage", "fleet_body", "read_body", "read_generation"]

_MOST_OF_FLEET = 1 << 20  # bytes of what the agent sends

_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "logprobs": (False, 0, None),
    "top_logprobs": (0, None),
    "prompt_logprobs": (None,),
    "suffix": ("", None),
    "use_beam_search": (False, None),
    "structured_outputs": (None,),
    "prompt_embeds": (None,),
    "stop_token_ids": ([], None),
    "include_stop_str_in_output": (False, None),
    "logit_bias": ({}, None),
    "tool_choice": ("auto", "none", None),
    "function_call": ("auto", "none", None),
}
_MEDIA = ("image", "input_image", "audio", "input_audio", "video")


class ApiError(Exception):
    """An error response: the status, and the fields of OpenAI's error object."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


async def fleet_body(request: Request) -> bytes:
    """What the agent sent. ApiError 413 past a mebibyte."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _MOST_OF_FLEET:
            raise ApiError(413, f"the body is larger than {_MOST_OF_FLEET} bytes")
    return data


class StreamUsage(Enum):
    """Which events of a stream hold usage (vLLM 0.32, `should_include_usage`)."""

    NONE = "none"
    LAST = "last"  # include_usage: an event of its own at the end
    EVERY = "every"  # continuous_usage_stats beside it, or --enable-force-include-usage


@dataclass(frozen=True, slots=True)
class Generation:
    """What a completion request asks for. prompt: text or token ids, for completions; chat has `body` rendered.
    max_tokens: None for as many as fit. truncate_prompt_tokens: of a longer prompt the last so many are kept; -1 for as
    many as fit beside the answer."""

    body: Mapping[str, Any]
    model: str
    prompt: str | list[int] | None
    stream: bool
    stream_usage: StreamUsage
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    seed: int | None
    cache_salt: str | None
    add_special_tokens: bool
    truncate_prompt_tokens: int | None


def read_body(data: bytes) -> dict[str, Any]:
    """ApiError unless `data` is a JSON object."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def read_generation(body: Mapping[str, Any], *, chat: bool) -> Generation:
    """ApiError names the first field that is missing, of a wrong type, or can't be served."""
    _refuse(body)
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
            raise ApiError(400, "messages must be a non-empty list of objects", param="messages")
        _refuse_media(messages)
    most = body.get("max_completion_tokens") if chat else None
    max_tokens = most if most is not None else body.get("max_tokens", None if chat else 16)
    return Generation(
        body=body,
        model=_typed(body, "model", str, ""),
        prompt=None if chat else _prompt(body.get("prompt")),
        stream=_typed(body, "stream", bool, False),
        stream_usage=_stream_usage(body),
        max_tokens=_count("max_tokens", max_tokens, least=1),
        min_tokens=_count("min_tokens", body.get("min_tokens"), least=0) or 0,
        ignore_eos=_typed(body, "ignore_eos", bool, False),
        stop=_stop(body.get("stop")),
        seed=_typed(body, "seed", int, None),
        cache_salt=_typed(body, "cache_salt", str, None),
        add_special_tokens=_typed(body, "add_special_tokens", bool, not chat),
        truncate_prompt_tokens=_count("truncate_prompt_tokens", body.get("truncate_prompt_tokens"), least=-1),
    )


def _refuse(body: Mapping[str, Any]) -> None:
    for name, kept in _UNSUPPORTED.items():
        if name in body and not any(body[name] is value or body[name] == value for value in kept):
            raise ApiError(400, f"{name}={body[name]!r} is not supported by the simulator; leave it out", param=name)
    response_format = body.get("response_format")
    if response_format is not None and response_format != {"type": "text"}:
        raise ApiError(400, 'response_format must be {"type": "text"}: a simulated answer has no structure',
                       param="response_format")  # fmt: skip


def _refuse_media(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind.startswith(_MEDIA):
                raise ApiError(400, f"the simulated model reads no {kind}", param="messages")


def _stream_usage(body: Mapping[str, Any]) -> StreamUsage:
    options = _typed(body, "stream_options", dict, {})
    if options and not body.get("stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if not _typed(options, "include_usage", bool, False):
        return StreamUsage.NONE
    every = _typed(options, "continuous_usage_stats", bool, False)
    return StreamUsage.EVERY if every else StreamUsage.LAST


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ApiError(400, f"{name} must be of type {kind.__name__}, got {type(value).__name__}", param=name)
    return value


def _count(name: str, value: Any, *, least: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ApiError(400, f"{name} must be a whole number of at least {least}, got {value!r}", param=name)
    return value


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(400, "stop must be a string or a list of at most 16 non-empty strings", param="stop")
    return tuple(stops)


def _prompt(value: Any) -> str | list[int]:
    """A text, or token ids; either may come alone in a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return value
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
        raise ApiError(400, "one prompt a request: send several requests instead", param="prompt")
    raise ApiError(400, "prompt must be a text or a non-empty list of token ids", param="prompt")
