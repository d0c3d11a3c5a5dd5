"""What a client may send: the fields of each completion endpoint, with the type each must have.

An allow-list, since engines take fields that reach into them (`kv_transfer_params`, `vllm_xargs`, `chat_template`,
`priority`, …) and grow more with each release. A field that is not listed is refused by name; null is as good as absent
wherever OpenAI's clients send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plumage_router.errors import bad_field

__all__ = [
    "CHAT",
    "COMPLETION",
    "check_fields",
    "check_messages",
    "check_prompt",
    "check_stream_options",
    "check_template_options",
]

Check = Callable[[Any], str | None]  # what the value must be, or None when it is that

MAX_MESSAGES = 4096
MAX_PROMPTS = 1024
_ROLES = ("user", "assistant", "system", "tool", "developer", "function")
_KNOWN_ROLES = frozenset(_ROLES)
_TEXT, _PAIR = {str}, {2}
_MESSAGE_FIELDS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning", "reasoning_content",
     "function_call", "annotations", "audio")
)  # fmt: skip
# Arguments of rendering itself: setting them would replace the operator's template, or what it returns.
_NOT_FOR_TEMPLATES = frozenset(
    ("chat_template", "conversation", "messages", "tools", "documents", "tokenize", "return_tensors", "return_dict",
     "tokenizer_kwargs", "padding", "truncation", "max_length", "continue_final_message", "add_generation_prompt")
)  # fmt: skip
# OpenAI's two, and vLLM's own.
_STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation", "continuous_usage_stats"))
# Content parts: what each type may hold, its own content first. Engines read more (`uuid` names an entry of a cache
# that all tenants share, `prompt_embeds` and `image_pil` reach into them), and with some of it overlook the type.
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
_PART_KEYS = {kind: frozenset(("type", "cache_control", *keys)) for kind, keys in _PARTS.items()}
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


# What a part's own content, the first of its keys, must be.
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
}

CHAT: dict[str, Check] = {
    **_SAMPLING,
    "messages": _anything,  # `check_messages` looks closer
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
}

COMPLETION: dict[str, Check] = {
    **_SAMPLING,
    "prompt": _anything,  # `check_prompt` looks closer
    "suffix": _text,
    "echo": _flag,
    "logprobs": _whole(0, 20),
    "best_of": _whole(1, 128),
}


def check_fields(body: Mapping[str, Any], allowed: Mapping[str, Check]) -> None:
    """Refuses the first field that is not allowed or has the wrong type."""
    for name, value in body.items():
        check = allowed.get(name)
        if check is None:
            raise bad_field(name, "this field may not be sent.", code="field_not_allowed")
        if value is not None:
            wrong = check(value)
            if wrong is not None:
                raise bad_field(name, f"it {wrong}.", code="invalid_type")


def check_template_options(options: Mapping[str, Any] | None) -> None:
    """`chat_template_kwargs` sets variables of the template, nothing else."""
    for name in options or ():
        if name in _NOT_FOR_TEMPLATES:
            raise bad_field(f"chat_template_kwargs.{name}", "this field may not be sent.", code="field_not_allowed")


def check_stream_options(options: Mapping[str, Any] | None) -> None:
    """`stream_options` switches what there is to switch, on or off."""
    for name, value in (options or {}).items():
        if name not in _STREAM_OPTIONS:
            raise bad_field(f"stream_options.{name}", "this field may not be sent.", code="field_not_allowed")
        wrong = None if value is None else _flag(value)
        if wrong is not None:
            raise bad_field(f"stream_options.{name}", f"it {wrong}.", code="invalid_type")


def check_messages(messages: Any, *, allow_media: bool) -> bool:
    """A chat's messages: known roles and fields, content a string or parts, no media URL that is not allowed. True if
    all of it is text."""
    plain = True
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", "it must be a list with at least one message.", code="invalid_type")
    if len(messages) > MAX_MESSAGES:
        raise bad_field("messages", f"there are more than {MAX_MESSAGES}.", code="too_many")
    if _usual(messages):
        return True
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise bad_field(f"messages[{index}]", "it must be an object.", code="invalid_type")
        if message.get("role") not in _ROLES:
            raise bad_field(f"messages[{index}].role", f"it must be one of {', '.join(_ROLES)}.")
        if not message.keys() <= _MESSAGE_FIELDS:
            name = min(message.keys() - _MESSAGE_FIELDS)
            raise bad_field(f"messages[{index}].{name}", "this field may not be sent.", code="field_not_allowed")
        content = message.get("content")
        if content is not None and type(content) is not str:
            plain &= _check_parts(f"messages[{index}].content", content, allow_media)
    return plain


def _usual(messages: list[Any]) -> bool:
    """A known role and a text each, as in nearly all requests."""
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
        raise bad_field(f"{path}.type", f"it must be one of {', '.join(_PARTS)}.")
    if not part.keys() <= _PART_KEYS[kind]:
        name = min(part.keys() - _PART_KEYS[kind])
        raise bad_field(f"{path}.{name}", "this field may not be sent.", code="field_not_allowed")
    key = _PARTS[kind][0]
    wrong = _CONTENT[key](part.get(key))
    if wrong is not None:
        raise bad_field(f"{path}.{key}", f"it {wrong}.", code="invalid_type")
    if key in _URLS and not allow_media:
        _check_media(f"{path}.{key}", part[key])


def _check_media(path: str, media: str | dict[str, Any]) -> None:
    """Data travels in the request; an address would make the engine fetch it for the client."""
    url: str = media["url"] if isinstance(media, dict) else media
    if not url.startswith("data:"):
        raise bad_field(path, "media URLs are not allowed here; send the data itself.", code="media_url")


def check_prompt(prompt: Any) -> None:
    """A raw completion's prompt: a string, token ids, or a list of either."""
    if isinstance(prompt, str) and prompt:
        return
    if isinstance(prompt, list) and len(prompt) > 0 and _ids(prompt) is None:
        return
    if isinstance(prompt, list) and 0 < len(prompt) <= MAX_PROMPTS:
        texts = all(isinstance(item, str) for item in prompt)
        if texts or all(isinstance(item, list) and item and _ids(item) is None for item in prompt):
            return
    raise bad_field("prompt", "it must be a string, a list of token ids, or a list of either.", code="invalid_type")
