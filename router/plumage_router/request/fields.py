"""The fields that a client may send to each completion endpoint, with the type of each.

All fields of OpenAI's API and of vLLM 0.32 are allowed, except dangerous ones (`forbidden_fields.py`). An unknown field
is refused too: a newer engine may render or cache the prompt by it, and the router's chunk chain would be wrong. Null
counts as absent. When the router cannot know which bytes an engine computes or reads from its cache, it routes the
request without a chain (`is_predictable`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from plumage_router.http.errors import RequestError, bad_field
from plumage_router.request.forbidden_fields import (
    FORBIDDEN,
    PART_REASON,
    STREAM_OPTIONS_REASON,
    TEMPLATE_OPTIONS,
    UNKNOWN,
    UNKNOWN_TO_CHAIN,
)

__all__ = [
    "CHAT",
    "COMPLETION",
    "COUNT_TOKENS",
    "DETOKENIZE",
    "EMBEDDINGS",
    "MAX_INPUTS",
    "MAX_MESSAGES",
    "MAX_PARTS",
    "MESSAGES",
    "RERANK",
    "RESPONSES",
    "SCORE",
    "TOKENIZE",
    "Messages",
    "check_fields",
    "check_messages",
    "check_prompt",
    "check_stream_options",
    "check_template_options",
    "is_predictable",
]

Check = Callable[[Any], str | None]  # returns what the value must be; None for a valid value

MAX_MESSAGES = 4096
MAX_PROMPTS = 1024
MAX_INPUTS = 2048  # as OpenAI's API has for embeddings
MAX_PARTS = 8192  # in all messages
MAX_ITEMS = 4096  # in any other list
_MAX_USER = 512  # characters
_MANY = frozenset((list, dict))
_LONG = frozenset(("messages", "prompt", "input", "tokens"))  # have their own bounds
_ROLES = ("user", "assistant", "system", "tool", "developer", "function")
_KNOWN_ROLES = frozenset(_ROLES)
_TEXT, _PAIR = {str}, {2}
# First those that vLLM renders. Then those that vLLM 0.32 shows to no template; clients send them back from an answer.
_MESSAGE_FIELDS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "tools", "task",
     "refusal", "function_call", "annotations", "audio", "provider_specific_fields", "thinking_blocks",
     "reasoning_details", "reasoning_items", "images", "parsed", "id", "cache_control", "additional_kwargs",
     "response_metadata", "usage_metadata", "example", "metadata")
)  # fmt: skip
# Two of OpenAI's, and one of vLLM's.
_STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation", "continuous_usage_stats"))
# The keys of each content part type, its content first. Engines read more keys, and some of them override the type:
# `uuid` names an entry of a cache that all tenants share; `prompt_embeds` and `image_pil` reach into the engine.
_PARTS = {
    "text": ("text", "annotations"),
    "input_text": ("text",),
    "output_text": ("text", "annotations"),
    "refusal": ("refusal",),
    "thinking": ("thinking", "closed"),
    "tool_reference": ("name",),
    "image_url": ("image_url", "detail"),
    "input_image": ("image_url", "detail"),
    "audio_url": ("audio_url",),
    "video_url": ("video_url",),
    "input_audio": ("input_audio",),
    "image_embeds": ("image_embeds",),
    "audio_embeds": ("audio_embeds",),
    "video_embeds": ("video_embeds",),
}
_PART_KEYS = {
    kind: frozenset(("type", "cache_control", "prompt_cache_breakpoint", *keys)) for kind, keys in _PARTS.items()
}
_URLS = frozenset(("image_url", "video_url", "audio_url"))
_MEDIA_KEYS = frozenset(("url", "detail"))


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _objects(value: Any) -> str | None:
    right = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    return None if right else "must be a list of objects"


def _texts(value: Any) -> str | None:
    right = isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    return None if right else "must be a string or a list of strings"


def _ids(value: Any) -> str | None:
    right = isinstance(value, list) and all(type(item) is int and 0 <= item < 2**31 for item in value)
    return None if right else "must be a list of token ids"


def _text_or_object(value: Any) -> str | None:
    return None if isinstance(value, str | dict) else "must be a string or an object"


def _audio(value: Any) -> str | None:
    right = isinstance(value, dict) and value.keys() == {"data", "format"} and all(map(_is_text, value.values()))
    return None if right else "must be an object with data and format"


def _media(value: Any) -> str | None:
    right = isinstance(value, dict) and value.keys() <= _MEDIA_KEYS and _is_text(value.get("url"))
    return None if right or _is_text(value) else "must be a URL or an object with a url"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _anything(value: Any) -> str | None:
    return None


def _number(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        right = type(value) in (int, float) and low <= value <= high
        return None if right else f"must be a number from {low:g} to {high:g}"

    return check


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        right = type(value) is int and low <= value <= high
        return None if right else f"must be a whole number from {low} to {high}"

    return check


# The type of a part's content, which is the first of its keys.
_CONTENT: dict[str, Check] = {
    **dict.fromkeys(("text", "refusal", "thinking", "name"), _text),
    **dict.fromkeys(("image_embeds", "audio_embeds", "video_embeds"), _text_or_object),
    **dict.fromkeys(_URLS, _media),
    "input_audio": _audio,
}

_SAMPLING: dict[str, Check] = {
    "model": _text,
    "stream": _flag,
    "stream_options": _object,
    "max_tokens": _whole(1, 2**31 - 1),
    "min_tokens": _whole(0, 2**31 - 1),
    "temperature": _number(0, 100),
    "top_p": _number(0, 1),
    "top_k": _whole(-1, 2**31 - 1),
    "min_p": _number(0, 1),
    "n": _whole(1, 128),
    "stop": _texts,
    "stop_token_ids": _ids,
    "include_stop_str_in_output": _flag,
    "ignore_eos": _flag,
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "add_special_tokens": _flag,
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0, 100),
    "length_penalty": _number(-100, 100),
    "logit_bias": _object,
    "seed": _whole(-(2**63), 2**63 - 1),
    "user": _text,
    "response_format": _object,
    "structured_outputs": _object,
    "cache_salt": _text,
    "truncate_prompt_tokens": _whole(-1, 2**31 - 1),
    "truncation_side": _text,
    "allowed_token_ids": _ids,
    "bad_words": _texts,
    "logprob_token_ids": _ids,
    "media_io_kwargs": _object,  # vLLM refuses this and the next without --trust-request-mm-kwargs
    "mm_processor_kwargs": _object,
    "mm_payload": _text,
    "prompt_logprobs": _whole(0, 20),  # -1, the whole vocabulary, would exhaust an engine's memory
    "repetition_detection": _object,
    "request_id": _text,  # no effect: vLLM prefers X-Request-Id, which the router sends
    "return_mm_kwargs": _flag,
    "return_token_ids": _flag,
    "return_token_offsets": _flag,
    "return_tokens_as_token_ids": _flag,
    "routed_experts_prompt_start": _whole(0, 2**31 - 1),
    "session_id": _text,
    "stream_interval": _whole(1, 2**31 - 1),
    "thinking_token_budget": _whole(-1, 2**31 - 1),
    # vLLM ignores these now.
    **dict.fromkeys(
        (
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
        ),
        _anything,
    ),
}

CHAT: dict[str, Check] = {
    **_SAMPLING,
    "messages": _anything,  # see `check_messages`
    "max_completion_tokens": _whole(1, 2**31 - 1),
    "logprobs": _flag,
    "top_logprobs": _whole(0, 20),
    "tools": _objects,
    "tool_choice": _text_or_object,
    "parallel_tool_calls": _flag,
    "functions": _objects,
    "function_call": _text_or_object,
    "reasoning_effort": _text,
    "include_reasoning": _flag,
    "chat_template_kwargs": _object,
    "add_generation_prompt": _flag,
    "continue_final_message": _flag,
    "documents": _objects,
    "echo": _flag,
    "metadata": _object,
    "store": _flag,
    "modalities": _texts,
    "service_tier": _text,
    "prompt_cache_key": _text,
    "safety_identifier": _text,
    "verbosity": _text,
    "return_prompt_text": _flag,
    # OpenAI's fields without effect in vLLM.
    "audio": _anything,
    "moderation": _anything,
    "prediction": _anything,
    "prompt_cache_options": _anything,
    "prompt_cache_retention": _anything,
    "web_search_options": _anything,
}


def _short_text(value: Any) -> str | None:
    right = isinstance(value, str) and len(value) <= _MAX_USER
    return None if right else f"must be a string of at most {_MAX_USER} characters"


RESPONSES: dict[str, Check] = {
    **{
        name: _SAMPLING[name]
        for name in (
            "model", "stream", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed",
            "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "logit_bias", "structured_outputs", "cache_salt", "media_io_kwargs",
            "mm_processor_kwargs", "mm_payload", "return_mm_kwargs", "session_id", "request_id",
        )
    },
    **{
        name: CHAT[name]
        for name in (
            "parallel_tool_calls", "include_reasoning", "chat_template_kwargs", "metadata", "store", "service_tier",
            "prompt_cache_key", "safety_identifier", "tool_choice", "top_logprobs",
        )
    },
    "input": _anything,  # see `plumage.rendering.responses`
    "instructions": _text,
    "user": _short_text,  # engines repeat it behind the usage
    "background": _flag,
    "include": _texts,
    "max_output_tokens": _whole(1, 2**31 - 1),
    "max_tool_calls": _whole(0, 2**31 - 1),
    "previous_response_id": _text,
    "previous_input_messages": _objects,
    "reasoning": _object,
    "text": _object,
    "tools": _objects,
    "truncation": _text,
    "stream_options": _object,  # vLLM ignores this and those below
    **{name: CHAT[name] for name in ("moderation", "prompt_cache_options", "prompt_cache_retention")},
    **dict.fromkeys(
        ("prompt", "conversation", "context_management", "client_metadata", "access_programs"), _anything
    ),
}  # fmt: skip

_RENDERED: dict[str, Check] = {
    "messages": _anything,  # see `check_messages`
    **{name: CHAT[name] for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")},
}
TOKENIZE: dict[str, Check] = {
    **_RENDERED,
    "model": _text,
    "prompt": _text,
    "tools": _objects,
    "add_special_tokens": _flag,
    "return_token_strs": _flag,
    **{name: _SAMPLING[name] for name in ("media_io_kwargs", "mm_processor_kwargs")},
}
DETOKENIZE: dict[str, Check] = {"model": _text, "tokens": _ids}
_POOLING: dict[str, Check] = {
    **{name: _SAMPLING[name] for name in ("model", "user", "truncate_prompt_tokens", "truncation_side", "request_id")},
    **{name: _SAMPLING[name] for name in ("cache_salt", "media_io_kwargs", "mm_processor_kwargs")},
    "padding": _text,
    "use_activation": _flag,
}
EMBEDDINGS: dict[str, Check] = {
    **_POOLING,
    **_RENDERED,
    "input": _anything,  # see `check_prompt`
    "add_special_tokens": _flag,
    "dimensions": _whole(1, 2**31 - 1),
    "encoding_format": _text,
    "embed_dtype": _text,
    "endianness": _text,
}
_SCORING: dict[str, Check] = {
    **_POOLING,
    "max_tokens_per_query": _whole(0, 2**31 - 1),
    "max_tokens_per_doc": _whole(0, 2**31 - 1),
    "instruction": _text,
    "chat_template_kwargs": _object,
}
RERANK: dict[str, Check] = {
    **_SCORING,
    "query": _text,
    "documents": _texts,
    "top_n": _whole(0, 2**31 - 1),
    "return_documents": _flag,  # of Jina's and Cohere's APIs; vLLM ignores it
}
SCORE: dict[str, Check] = {
    **_SCORING,
    **dict.fromkeys(("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2"), _texts),
    "encoding_format": _text,
}
"""Documents of these two are texts: an engine would fetch the media of others."""

COUNT_TOKENS: dict[str, Check] = {
    "model": _text,
    "messages": _anything,  # `plumage.rendering.anthropic` converts these two and checks them
    "system": _anything,
    **dict.fromkeys(("output_config", "thinking", "tool_choice", "chat_template_kwargs"), _object),
    "tools": _objects,
    # Anthropic's fields without effect in vLLM.
    **dict.fromkeys(
        (
            "cache_control",
            "container",
            "context_management",
            "inference_geo",
            "mcp_servers",
            "output_format",
            "service_tier",
            "speed",
        ),
        _anything,
    ),
}
MESSAGES: dict[str, Check] = {
    **COUNT_TOKENS,
    **{name: _SAMPLING[name] for name in ("max_tokens", "temperature", "top_p", "top_k", "stream", "cache_salt")},
    **{name: _SAMPLING[name] for name in ("mm_payload", "return_mm_kwargs")},
    "stop_sequences": _texts,
    "metadata": _object,
}
"""Anthropic's Messages API."""

COMPLETION: dict[str, Check] = {
    **_SAMPLING,
    "prompt": _anything,  # see `check_prompt`
    "suffix": _text,
    "echo": _flag,
    "logprobs": _whole(0, 20),
    "best_of": _whole(1, 128),
}


class Messages(NamedTuple):
    """plain: all content is text. known: vLLM's rendering of every field is known."""

    plain: bool
    known: bool


_ALL_TEXT = Messages(plain=True, known=True)


def check_fields(body: Mapping[str, Any], known: Mapping[str, Check], allowed: Collection[str] = ()) -> None:
    """Raises RequestError for the first field that is not allowed or has the wrong type.

    allowed: further names that the pool lets pass.
    """
    for name, value in body.items():
        check = known.get(name)
        if check is None:
            if name not in allowed:
                raise _not_allowed(name, FORBIDDEN.get(name, UNKNOWN))
        elif value is not None:
            if type(value) in _MANY and len(value) > MAX_ITEMS and name not in _LONG:
                raise bad_field(name, f"it may have at most {MAX_ITEMS} entries.", code="too_many")
            wrong = check(value)
            if wrong is not None:
                raise bad_field(name, f"it {wrong}.", code="invalid_type")


def is_predictable(body: Mapping[str, Any], known: Mapping[str, Check]) -> bool:
    """Whether the router can predict which bytes the engine computes, and that the engine uses its cache for them.

    vLLM computes a prompt without its cache to report the prompt's log probabilities.
    """
    if body.get("prompt_logprobs") is not None:
        return False
    if body.get("echo") and (known is CHAT or body.get("logprobs") is not None):
        return False
    if body.keys() <= known.keys():
        return True
    return all(name in known or (name in FORBIDDEN and name not in UNKNOWN_TO_CHAIN) for name in body)


def _not_allowed(path: str, reason: str) -> RequestError:
    return bad_field(path, f"this field may not be sent: {reason}.", code="field_not_allowed")


def check_template_options(options: Mapping[str, Any] | None) -> None:
    """Raises RequestError if `chat_template_kwargs` sets anything but variables of the template."""
    for name in options or ():
        if name in TEMPLATE_OPTIONS:
            raise _not_allowed(f"chat_template_kwargs.{name}", TEMPLATE_OPTIONS[name])


def check_stream_options(options: Mapping[str, Any] | None) -> None:
    """Raises RequestError for an unknown option of a stream, or one that is not a boolean."""
    for name, value in (options or {}).items():
        if name not in _STREAM_OPTIONS:
            raise _not_allowed(f"stream_options.{name}", STREAM_OPTIONS_REASON)
        wrong = None if value is None else _flag(value)
        if wrong is not None:
            raise bad_field(f"stream_options.{name}", f"it {wrong}.", code="invalid_type")


def check_messages(messages: Any, *, allow_media: bool) -> Messages:
    """Checks a chat's messages: known roles, content as a string or parts, and no media URL unless allowed.

    Any other field of a message is allowed, because clients send answers back. Raises RequestError.
    """
    plain, known, parts = True, True, 0
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", "it must be a list with at least one message.", code="invalid_type")
    if len(messages) > MAX_MESSAGES:
        raise bad_field("messages", f"there are more than {MAX_MESSAGES}.", code="too_many")
    if _all_text(messages):
        return _ALL_TEXT
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise bad_field(f"messages[{index}]", "it must be an object.", code="invalid_type")
        if message.get("role") not in _ROLES:
            raise bad_field(f"messages[{index}].role", f"it must be one of {', '.join(_ROLES)}.", code="invalid_type")
        known &= message.keys() <= _MESSAGE_FIELDS
        content = message.get("content")
        if content is not None and type(content) is not str:
            parts += len(content) if type(content) is list else 0
            if parts > MAX_PARTS:
                raise bad_field("messages", f"there are more than {MAX_PARTS} content parts.", code="too_many")
            plain &= _check_parts(f"messages[{index}].content", content, allow_media)
    return Messages(plain, known)


def _all_text(messages: list[Any]) -> bool:
    """Whether each message is a known role and a text, as in nearly all requests."""
    try:
        for message in messages:
            if len(message) != 2 or type(message["content"]) is not str or message["role"] not in _KNOWN_ROLES:
                return False
    except (KeyError, TypeError):
        return False
    return True


def _check_parts(path: str, parts: Any, allow_media: bool) -> bool:
    if _objects(parts) is not None:
        raise bad_field(path, "it must be a string or a list of content parts.", code="invalid_type")
    for index, part in enumerate(parts):
        _check_part(f"{path}[{index}]", part, allow_media)
    return all(_CONTENT[_PARTS[part["type"]][0]] is _text for part in parts)


def _check_part(path: str, part: Mapping[str, Any], allow_media: bool) -> None:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise bad_field(f"{path}.type", "it must be a string.", code="invalid_type")
    if kind not in _PARTS:
        raise bad_field(f"{path}.type", f"it must be one of {', '.join(_PARTS)}.", code="invalid_type")
    if not part.keys() <= _PART_KEYS[kind]:
        name = min(part.keys() - _PART_KEYS[kind])
        raise _not_allowed(f"{path}.{name}", PART_REASON)
    key = _PARTS[kind][0]
    wrong = _CONTENT[key](part.get(key))
    if wrong is not None:
        raise bad_field(f"{path}.{key}", f"it {wrong}.", code="invalid_type")
    if key in _URLS and not allow_media:
        _check_media(f"{path}.{key}", part[key])


def _check_media(path: str, media: str | dict[str, Any]) -> None:
    """Allows only data in the request: an engine would fetch a URL for the client."""
    url: str = media["url"] if isinstance(media, dict) else media
    if not url.startswith("data:"):
        raise bad_field(path, "media URLs are not allowed here; send the data itself.", code="media_url")


def check_prompt(prompt: Any, name: str = "prompt", most: int = MAX_PROMPTS) -> None:
    """Checks a raw completion's prompt: a string, token ids, or a list of at most `most` of either. Raises RequestError
    for the field `name`."""
    if isinstance(prompt, str) and prompt:
        return
    if isinstance(prompt, list) and len(prompt) > 0 and _ids(prompt) is None:
        return
    if isinstance(prompt, list) and 0 < len(prompt) <= most:
        texts = all(isinstance(item, str) for item in prompt)
        if texts or all(isinstance(item, list) and item and _ids(item) is None for item in prompt):
            return
    raise bad_field(name, "it must be a string, a list of token ids, or a list of either.", code="invalid_type")
