"""A chat request's messages and tools as the template gets them: vLLM's reading of them, then transformers'.

Both change what the client sent, and the prompt shows it:

- Content becomes one string or a list of parts.
- Fields that are `null` are removed.
- The arguments of a tool call are parsed.
- Keys have a fixed order, which `tojson` prints.
- The role "developer" becomes "system" where the template does not have it.

No text stands for the tokens of an image or audio, so the chain of chunks ends before the first of them.
`MultimodalCut` puts a mark there, and cuts the rendered prompt at the mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumage.rendering.contentformat import ContentFormat
from plumage.rendering.errors import TemplateError

__all__ = [
    "BILLING_HEADER",
    "MultimodalCut",
    "has_developers",
    "plain_message",
    "read_messages",
    "read_tools",
    "without_developers",
]

Message = dict[str, Any]

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_PARTS = {
    "image_url": "image", "input_image": "image", "image_embeds": "image", "image_pil": "image",
    "audio_url": "audio", "input_audio": "audio", "audio_embeds": "audio",
    "video_url": "video", "video_embeds": "video",
}  # fmt: skip
_PART_FIELDS = frozenset((
    "type", "text", "refusal", "thinking", "closed", "uuid", "detail", "name", "data", "file", "tool_reference",
    "prompt_cache_breakpoint", *_MEDIA_PARTS,
))  # fmt: skip
"""Fields that OpenAI's API knows; others of a part reach the template as they are."""

BILLING_HEADER = "x-anthropic-billing-header"


@dataclass(slots=True)
class MultimodalCut:
    """Where the prompt stops being text. `found` once a media part was met."""

    found: bool = False

    MARK = "\ue0c1plumage: media from here\ue0c1"

    def place(self) -> bool:
        """True for the first media part only: it is the one to put the mark at."""
        first, self.found = not self.found, True
        return first

    def apply(self, prompt: str) -> str:
        """The text before the mark. A template that swallowed it leaves nothing that is known to be text."""
        if not self.found:
            return prompt
        before, mark, _ = prompt.partition(self.MARK)
        return before if mark else ""


def read_messages(given: Any, wanted: ContentFormat, cut: MultimodalCut) -> list[Message]:
    """The messages, as the template gets them. TemplateError names the first invalid one."""
    if not isinstance(given, list) or not given:
        raise TemplateError("must be a list with at least one message", field="messages")
    return [_read(message, index, wanted, cut) for index, message in enumerate(given)]


def has_developers(messages: Iterable[Message]) -> bool:
    return "developer" in [message["role"] for message in messages]


def without_developers(messages: list[Message]) -> list[Message]:
    """Makes developers systems, and all systems one in front, for templates without a developer role."""
    messages = [_as_system(message) if message["role"] == "developer" else message for message in messages]
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) == 1 and messages[0]["role"] == "system":
        return messages
    text = "\n\n".join(filter(None, (_flat(message.get("content", "")) for message in systems)))
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": text}, *rest]


def read_tools(given: Any) -> list[dict[str, Any]] | None:
    """Tools as vLLM's models dump them: type, then function with name, description and parameters in this order."""
    if given is None:
        return None
    if not isinstance(given, list):
        raise TemplateError("must be a list", field="tools")
    return [_read_tool(tool, index) for index, tool in enumerate(given)]


def _read(message: Any, index: int, wanted: ContentFormat, cut: MultimodalCut) -> Message:
    role = message.get("role") if type(message) is dict or isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise TemplateError("must be an object with a role", field=f"messages[{index}]")
    content = message.get("content")
    if len(message) == 2 and type(content) is str and not content.startswith(BILLING_HEADER):  # nearly all of them
        return plain_message(role, content, wanted)
    result: Message = {"role": role, "content": _content(content, role, index, wanted, cut)}
    if role == "assistant":
        result |= _assistant_fields(message, index)
    elif role == "tool":
        result["content"] = _tool_content(result["content"])
        result["tool_call_id"] = message.get("tool_call_id")
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        result["tools"] = message.get("tools")
    return _aliased({key: value for key, value in result.items() if value is not None})


def plain_message(role: str, text: str, wanted: ContentFormat) -> Message:
    """A role and a text as the template sees them."""
    whole = wanted == "string" or role == "tool"
    return {"role": role, "content": text if whole else [{"type": "text", "text": text}]}


def _content(content: Any, role: str, index: int, wanted: ContentFormat, cut: MultimodalCut) -> str | list[Any]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif content is None:
        content = []
    elif not isinstance(content, list):
        raise TemplateError("must be a string or a list of parts", field=f"messages[{index}].content")
    if role == "system":
        content = _without_billing_header(content)
    parts = [part for given in content if (part := _part(given, index, cut)) is not None]
    return parts if wanted == "openai" else _joined(parts)


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    """Media come before the text, wherever they stood; where they come from, the text ends being known."""
    texts = [part["text"] if "text" in part else part["name"] for part in parts if part["type"] in ("text", _REFERENCE)]
    marked = MultimodalCut.MARK in texts
    return MultimodalCut.MARK if marked else "\n".join(texts)


_REFERENCE = "tool_reference"


def _part(part: Any, index: int, cut: MultimodalCut) -> dict[str, Any] | None:
    """Reads one part of a content list; None for a text part without a text, which vLLM leaves out."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise TemplateError("a part must be a string or an object", field=f"messages[{index}].content")
    kind = _part_kind(part, index)
    if kind in _TEXT_PARTS:
        return _text_part(part, kind, index)
    if kind == _REFERENCE:
        return {"type": _REFERENCE, "name": str(part.get("name"))}
    if cut.place():
        return {"type": "text", "text": MultimodalCut.MARK}
    return {"type": _MEDIA_PARTS[kind], **_further_fields(part)}


def _part_kind(part: Mapping[str, Any], index: int) -> str:
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        kind = next((name for name in (*_MEDIA_PARTS, _REFERENCE) if name in part), kind)
    if isinstance(kind, str) and (kind in _TEXT_PARTS or kind in _MEDIA_PARTS or kind == _REFERENCE):
        return kind
    known = ", ".join(sorted({*_TEXT_PARTS, *_MEDIA_PARTS, _REFERENCE}))
    raise TemplateError(f"unsupported part type {kind!r}; supported: {known}", field=f"messages[{index}].content")


def _text_part(part: Mapping[str, Any], kind: str, index: int) -> dict[str, Any] | None:
    text = part.get(_TEXT_PARTS[kind])
    if text is None:
        return None
    if not isinstance(text, str):
        raise TemplateError("the text of a part must be a string", field=f"messages[{index}].content")
    return {"type": "text", "text": text, **_further_fields(part)}


def _further_fields(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in _PART_FIELDS}


def _without_billing_header(parts: Iterable[Any]) -> list[Any]:
    """vLLM drops an attribution line that some clients put first: it differs with each request."""
    kept: list[Any] = []
    for part in parts:
        plain = isinstance(part, str)
        text = part if plain else part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if plain else {**part, "text": rest})
    return kept


def _tool_content(content: str | list[Any]) -> str | list[Any]:
    """A tool's answer is a string even for templates that want parts, unless a part is no text."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _assistant_fields(message: Mapping[str, Any], index: int) -> Message:
    fields: Message = {}
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise TemplateError("must be a list", field=f"messages[{index}].tool_calls")
        fields["tool_calls"] = [_read_call(call, index) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")  # an older name, which vLLM's request model renames
    if reasoning is not None:
        fields["reasoning"] = fields["reasoning_content"] = reasoning
    return fields


def _read_call(call: Any, index: int) -> dict[str, Any]:
    """id, function with arguments and name, type: the order of OpenAI's types, in which vLLM holds a call."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise TemplateError("only calls of type 'function' are supported", field=f"messages[{index}].tool_calls")
    read = {"arguments": _arguments(function.get("arguments"), index), "name": function.get("name")}
    result = {"id": call.get("id"), "function": read, "type": "function"}
    return {key: value for key, value in result.items() if value is not None}


def _arguments(given: Any, index: int) -> dict[str, Any]:
    """An object; what can't be read as one is an empty one, so that one bad call does not spoil a conversation."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
        except RecursionError:
            raise TemplateError("the arguments are nested too deep", field=f"messages[{index}].tool_calls") from None
    return given if isinstance(given, dict) else {}


def _aliased(message: Message) -> Message:
    """transformers offers the reasoning under each of the names that templates read."""
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {"thinking": reasoning, **message}


def _as_system(message: Message) -> Message:
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _flat(content: str | list[Any]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _read_tool(tool: Any, index: int) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError("must be an object with a function that has a name", field=f"tools[{index}]")
    deferred = tool.get("defer_loading")
    read: dict[str, Any] = {key: function.get(key) for key in ("name", "description", "parameters")}
    optional = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", deferred)}
    read |= {key: value for key, value in optional.items() if value is not None}
    result: dict[str, Any] = {"type": "function", "function": read}
    return result if deferred is None else {**result, "defer_loading": deferred}
