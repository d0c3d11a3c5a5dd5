"""A request of OpenAI's Responses API as the chat that vLLM 0.32 makes of it, before any template is run.

Source: `construct_input_messages` and `construct_tool_dicts` of vLLM 0.32, which tests compare with this module.

- `instructions` become the system message. An item with a role becomes a message.
- Reasoning, an answer and tool calls that follow each other become one message of the assistant.
- An assistant's message keeps only its first part. Tools that are no functions are left out.
- A conversation that only the engine has (`previous_response_id`) is not `known`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from plumage.rendering.conversion import AsChat, object_in, objects
from plumage.rendering.errors import RequestShapeError

__all__ = ["responses_as_chat"]

_ROLES: Final = ("user", "assistant", "system", "developer")
_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_ITEMS: Final = ("message", "reasoning", *_CALLS, *_OUTPUTS)
_CONTINUED: Final = ("in_progress", "incomplete")
_UNSEEN: Final = frozenset(("type", "status", "phase"))  # of a message; no template sees them
_ANSWER_PARTS: Final = {
    "output_text": frozenset(("type", "text", "annotations", "logprobs")),
    "refusal": frozenset(("type", "refusal")),
}
_CUSTOM_PARAMETERS: Final = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""vLLM shows a tool that takes free text as a function with these parameters."""


def responses_as_chat(body: Mapping[str, Any]) -> AsChat:
    """Converts a request. RequestShapeError for a field of the wrong type, and for an item that vLLM refuses."""
    messages: list[dict[str, Any]] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    chat: dict[str, Any] = {"model": body.get("model"), "messages": messages}
    given = body.get("input")
    known = body.get("previous_response_id") is None and body.get("previous_input_messages") is None
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        items: list[dict[str, Any]] = []
        for index, item in enumerate(objects(given, "input", "a string or a list of items")):
            known &= _convert(item, f"input[{index}]", items)
        messages += items
        known &= _continue(chat, given[-1])
    else:
        raise RequestShapeError("input", "must be a string or a list with at least one item")
    for name in ("chat_template_kwargs", "cache_salt"):
        if body.get(name) is not None:
            chat[name] = body[name]
    if (effort := object_in(body, "reasoning").get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if body.get("truncation") not in (None, "disabled"):
        chat |= {"truncate_prompt_tokens": -1, "max_tokens": body.get("max_output_tokens")}
    if tools := body.get("tools"):
        chat["tools"] = _functions(objects(tools, "tools"))
        chat["tool_choice"] = body.get("tool_choice") or "auto"
    return AsChat(chat, known)


def _convert(item: Mapping[str, Any], field: str, messages: list[dict[str, Any]]) -> bool:
    """Appends what an item becomes, or adds it to the assistant's message before it. Returns whether all of it was
    converted."""
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise RequestShapeError(f"{field}.type", f"must be one of {', '.join(_ITEMS)}")
    if kind != "message" and "role" in item:  # vLLM may take the whole item for a message
        raise RequestShapeError(f"{field}.role", "must not be there")
    if kind in _CALLS:
        _add_call(item, field, kind, messages)
        return True
    if kind in _OUTPUTS:
        output = item.get("output")
        messages.append({"role": "tool", "content": output, "tool_call_id": _text(item, "call_id", field)})
        return True
    if kind == "reasoning":
        return _add_reasoning(item, field, messages)
    return _add_message(item, field, messages)


def _add_message(item: Mapping[str, Any], field: str, messages: list[dict[str, Any]]) -> bool:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestShapeError(f"{field}.role", f"must be one of {', '.join(_ROLES)}")
    if role != "assistant":
        messages.append({name: value for name, value in item.items() if name not in _UNSEEN})
        return True
    known = True
    if isinstance(content, list):
        parts = objects(content, f"{field}.content", "a string or a list of content parts")
        for index, part in enumerate(parts):
            _check_answer(part, f"{field}.content[{index}]")
        known = _is_answer(parts) and "type" in item
        content = parts[0]["text"] if known else content
    _add_to_assistant(messages, "content", content)
    return known


def _is_answer(parts: list[Mapping[str, Any]]) -> bool:
    """Whether vLLM takes the first part's text for the whole answer."""
    kinds = [part.get("type") for part in parts]
    return kinds[:1] == ["output_text"] and all(kind in _ANSWER_PARTS for kind in kinds)


def _check_answer(part: Mapping[str, Any], field: str) -> None:
    """Refuses a part with further keys: it might reach vLLM's reader of media, past the router's check."""
    known = _ANSWER_PARTS.get(str(part.get("type")))
    if known is None:
        return  # the check of messages sees it
    if further := part.keys() - known:
        raise RequestShapeError(f"{field}.{min(further)}", "must not be there")
    for name in ("annotations", "logprobs"):
        if not isinstance(part.get(name), list | None):
            raise RequestShapeError(f"{field}.{name}", "must be a list")
    if part["type"] == "output_text":
        _text(part, "text", field)


def _add_call(item: Mapping[str, Any], field: str, kind: str, messages: list[dict[str, Any]]) -> None:
    name = _text(item, "name", field)
    if kind == "function_call":
        arguments = _text(item, "arguments", field)
        if item.get("namespace"):
            name = f"{_text(item, 'namespace', field)}__{name}"
    else:
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
    call = {"id": _text(item, "call_id", field), "type": "function", "function": {"name": name, "arguments": arguments}}
    previous = messages[-1] if messages else {}
    if previous.get("role") == "assistant":
        previous.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})


def _add_reasoning(item: Mapping[str, Any], field: str, messages: list[dict[str, Any]]) -> bool:
    """vLLM refuses encrypted reasoning. Without content it takes the summary."""
    for name in ("summary", "content"):
        for index, part in enumerate(objects([] if item.get(name) is None else item[name], f"{field}.{name}")):
            if further := part.keys() - {"type", "text"}:
                raise RequestShapeError(f"{field}.{name}[{index}].{min(further)}", "must not be there")
            _text(part, "text", f"{field}.{name}[{index}]")
    parts = item.get("content") or item.get("summary") or []
    _add_to_assistant(messages, "reasoning", parts[0]["text"] if parts else "")
    return not item.get("encrypted_content")


def _add_to_assistant(messages: list[dict[str, Any]], name: str, value: Any) -> None:
    """Sets a field of the assistant's message at the end. Appends one if there is none, or if it has the field."""
    previous = messages[-1] if messages else {}
    if previous.get("role") == "assistant" and previous.get(name) is None:
        previous[name] = value
    else:
        messages.append({"role": "assistant", name: value})


def _continue(chat: dict[str, Any], last: Mapping[str, Any]) -> bool:
    """An incomplete message at the end is continued. Returns whether the prompt of that is known."""
    kind = last.get("type", "message")
    if last.get("status") not in _CONTINUED or kind not in ("message", "reasoning"):
        return True
    if kind == "message":
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    return bool(kind == "message")


def _functions(tools: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The functions that a model is shown. Those of a namespace get its name in front."""
    functions: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        field, kind = f"tools[{index}]", tool.get("type")
        if kind == "function":
            functions.append(_function(tool, field))
        elif kind == "custom":
            shown = {"name": _text(tool, "name", field), "description": tool.get("description")}
            functions.append({"type": "function", "function": {**shown, "parameters": _CUSTOM_PARAMETERS}})
        elif kind == "namespace":
            inner = objects(tool.get("tools"), f"{field}.tools")
            named = [one for one in inner if one.get("type") == "function"]
            functions += [_function(one, f"{field}.tools", f"{_text(tool, 'name', field)}__") for one in named]
    return functions


def _function(tool: Mapping[str, Any], field: str, prefix: str = "") -> dict[str, Any]:
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestShapeError(f"{field}.parameters", "must be an object")
    function = {"name": prefix + _text(tool, "name", field), "description": tool.get("description")}
    more = {key: tool[key] for key in ("strict", "defer_loading") if tool.get(key) is not None}
    return {"type": "function", "function": {**function, "parameters": parameters, **more}}


def _text(item: Mapping[str, Any], name: str, field: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestShapeError(f"{field}.{name}", "must be a string")
    return value
