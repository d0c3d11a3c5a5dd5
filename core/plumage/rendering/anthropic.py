"""A request of Anthropic's Messages API as the chat that vLLM 0.32 makes of it, before any template is run.

Source: `AnthropicServingMessages.to_chat_completion_request` of vLLM 0.32, which tests compare with this module.

- System blocks become one system message. vLLM drops Claude Code's attribution line, which is new in each request.
- Inline system messages join the first one where a template allows no other (`merges_system`).
- `tool_use` blocks become tool calls, and a user's `tool_result` blocks messages of the role `tool` before its text.
- Tools that are added or removed within a conversation are not converted: such a request is not `known`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plumage.rendering.conversation import BILLING_HEADER
from plumage.rendering.conversion import AsChat, object_in, objects
from plumage.rendering.errors import RequestShapeError

__all__ = ["EFFORTS", "anthropic_as_chat", "merges_system"]

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_ROLES: Final = ("user", "assistant", "system")
_PROBE: Final = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
_TOOL_CHANGES: Final = frozenset(("tool_addition", "tool_removal"))
_BLOCKS: Final = _TOOL_CHANGES | {
    "text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking",
}  # fmt: skip
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def merges_system(template: str | None) -> bool:
    """Whether vLLM moves inline system messages to the front, since the template refuses them elsewhere.

    vLLM runs the template without any of the functions that it has later, so a template that calls one merges too.
    """
    if not template:
        return True
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    try:
        environment.from_string(template).render(messages=_PROBE, add_generation_prompt=False)
    except Exception:  # a template may call anything; vLLM ends at its start for errors that are not Jinja's
        return True
    return False


def anthropic_as_chat(
    body: Mapping[str, Any], *, merge_system: bool, disabled_effort: Callable[[], str], shape_only: bool = False
) -> AsChat:
    """Converts a request. RequestShapeError for a field of the wrong type.

    shape_only: leaves out what must be serialized (inputs of tools), which takes long for megabytes. The messages and
    their media can be checked then, and not rendered.
    merge_system: see `merges_system`. disabled_effort: returns the reasoning effort for thinking that is switched off.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestShapeError("messages", "must be a list with at least one message")
    messages: list[dict[str, Any]] = []
    system = _system_texts(body.get("system"), "system")
    if merge_system:
        for index, message in enumerate(given):
            if isinstance(message, Mapping) and message.get("role") == "system":
                system += _system_texts(message.get("content"), f"messages[{index}].content")
    if system:
        messages.append({"role": "system", "content": "".join(system)})
    known = True
    for index, message in enumerate(given):
        known &= _convert(message, f"messages[{index}]", messages, merge_system, shape_only)
    chat: dict[str, Any] = {"model": body.get("model"), "messages": messages}
    for name in ("chat_template_kwargs", "cache_salt"):
        if body.get(name) is not None:
            chat[name] = body[name]
    _add_effort(chat, body, disabled_effort)
    _add_tools(chat, body)
    return AsChat(chat, known and not shape_only)


def _system_texts(content: Any, field: str) -> list[str]:
    """The texts of a system prompt. vLLM drops a header that changes with each request."""
    if content is None:
        return []
    if isinstance(content, str):
        kept = field == "system" or not content.startswith(BILLING_HEADER)
        return [content] if content and kept else []
    texts = (block["text"] for block in _blocks(content, field) if block["type"] == "text" and block.get("text"))
    return [text for text in texts if not text.startswith(BILLING_HEADER)]


def _convert(message: Any, field: str, messages: list[dict[str, Any]], merge_system: bool, shape_only: bool) -> bool:
    """Appends what a message becomes. Returns whether all of it was converted."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestShapeError(f"{field}.role", f"must be one of {', '.join(_ROLES)}")
    content = message.get("content")
    if role == "system":
        text = "".join(_system_texts(content, f"{field}.content"))
        if text and not merge_system:
            messages.append({"role": "system", "content": text})
        return isinstance(content, str) or _TOOL_CHANGES.isdisjoint(block["type"] for block in content or ())
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return True
    blocks = _blocks(content, f"{field}.content")
    converted: dict[str, Any] = {"role": role, **_content(blocks, role, messages, shape_only)}
    if role == "assistant" or "content" in converted:
        messages.append(converted)
    # vLLM makes up an id by the time.
    return all(block.get("id") for block in blocks if block["type"] == "tool_use")


def _content(
    blocks: Iterable[Mapping[str, Any]], role: str, messages: list[dict[str, Any]], shape_only: bool
) -> dict[str, Any]:
    """The fields that blocks become. The results of tools are appended to `messages`, before their own message."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block["type"]
        if kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and block.get("source"):
            parts.append(_image(block["source"]))
        elif kind == "thinking" and block.get("thinking") is not None:
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            arguments = "{}" if shape_only else json.dumps(block.get("input") or {})
            called = {"name": block.get("name") or "", "arguments": arguments}
            calls.append({"id": block.get("id") or "", "type": "function", "function": called})
        elif kind == "tool_result" and role == "user":
            messages += _tool_results(block)
        elif kind == "tool_result" and not shape_only:
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''!s}"})
    fields: dict[str, Any] = {}
    if thoughts:
        fields["reasoning"] = "".join(thoughts)
    if calls:
        fields["tool_calls"] = calls
    if parts:
        fields["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    return fields


def _image(source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url") or ""
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_results(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a user's tool result: its text, then its images, then the tools that it names."""
    content, head = block.get("content"), {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    if not isinstance(content, list):
        return [{**head, "content": content or ""}]
    by_kind: dict[str, list[Mapping[str, Any]]] = {"text": [], "image": [], "tool_reference": []}
    for item in content:
        by_kind.get(str(item.get("type")), []).append(item)
    results: list[dict[str, Any]] = [{**head, "content": "\n".join(item.get("text", "") for item in by_kind["text"])}]
    images = [_image(item.get("source") or {}) for item in by_kind["image"]]
    if images := [image for image in images if image["image_url"]["url"]]:
        results.append({"role": "user", "content": images})
    names = [item.get("tool_name") or item.get("name") for item in by_kind["tool_reference"]]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        results.append({**head, "content": references})
    return results


def _add_effort(chat: dict[str, Any], body: Mapping[str, Any], disabled_effort: Callable[[], str]) -> None:
    effort = object_in(body, "output_config").get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    if object_in(body, "thinking").get("type") == "disabled":
        chat["reasoning_effort"] = disabled_effort()


def _add_tools(chat: dict[str, Any], body: Mapping[str, Any]) -> None:
    choice, tools = object_in(body, "tool_choice"), body.get("tools")
    if choice:
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = _CHOICES.get(str(choice.get("type")), named)
    if tools is not None:
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(objects(tools, "tools"))]
        chat.setdefault("tool_choice", "auto")


def _tool(tool: Mapping[str, Any], field: str) -> dict[str, Any]:
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str):
        raise RequestShapeError(f"{field}.name", "must be a string")
    if not isinstance(schema, Mapping):
        raise RequestShapeError(f"{field}.input_schema", "must be an object")
    parameters = dict(schema) if "type" in schema else {**schema, "type": "object"}
    function = {"name": name, "description": tool.get("description"), "parameters": parameters}
    more = {key: tool[key] for key in ("strict", "defer_loading") if tool.get(key) is not None}
    return {"type": "function", "function": {**function, **more}}


def _blocks(content: Any, field: str) -> list[Mapping[str, Any]]:
    """Content blocks whose fields have the types that this module reads."""
    blocks = objects(content, field, "a string or a list of content blocks")
    for index, block in enumerate(blocks):
        kind, here = block.get("type"), f"{field}[{index}]"
        if not isinstance(kind, str) or kind not in _BLOCKS:
            raise RequestShapeError(f"{here}.type", f"must be one of {', '.join(sorted(_BLOCKS))}")
        for name in ("text", "thinking", "id", "tool_use_id", "name"):
            if not isinstance(block.get(name, ""), str | None):
                raise RequestShapeError(f"{here}.{name}", "must be a string")
        if not isinstance(block.get("input", {}), Mapping | None):
            raise RequestShapeError(f"{here}.input", "must be an object")
        if kind == "image":
            _check_source(block, here)
        inner = block.get("content")
        if inner is not None and not isinstance(inner, str):
            for number, item in enumerate(objects(inner, f"{here}.content")):
                if item.get("type") == "text" and not isinstance(item.get("text", ""), str):
                    raise RequestShapeError(f"{here}.content[{number}].text", "must be a string")
                if item.get("type") == "image":
                    _check_source(item, f"{here}.content[{number}]")
    return blocks


def _check_source(image: Mapping[str, Any], field: str) -> None:
    source = image.get("source")
    if source is None:
        return
    if not isinstance(source, Mapping):
        raise RequestShapeError(f"{field}.source", "must be an object")
    for name in ("type", "url", "data", "media_type"):
        if not isinstance(source.get(name, ""), str):
            raise RequestShapeError(f"{field}.source.{name}", "must be a string")
