"""Requests of OpenAI's Responses API, as Codex and the SDKs send them, with each kind of item and tool."""

from __future__ import annotations

from typing import Any

__all__ = ["RESPONSES_BODIES"]

_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL = {"type": "function", "name": "get_weather", "description": "Says the weather.", "parameters": _PARAMETERS,
         "strict": False}  # fmt: skip
_BARE_TOOL = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": None}
_PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
_SPACE = {"type": "namespace", "name": "geo", "description": "Places.", "tools": [_TOOL, _PATCH]}
_SEARCH = {"type": "web_search"}
_HELLO = {"role": "user", "content": "Hello there"}
_CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Zürich"}'}
_NEXT_CALL = {**_CALL, "id": "fc_2", "call_id": "call_2", "status": "completed"}
_PATCH_CALL = {"type": "custom_tool_call", "call_id": "call_3", "name": "apply_patch", "input": '*** "é"\n+ x'}
_OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
_REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
_ANSWER = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
           "content": [{"type": "output_text", "text": "I look it up.", "annotations": []}]}  # fmt: skip
_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}


def _said(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


RESPONSES_BODIES: dict[str, dict[str, Any]] = {
    "text": {"input": "Hello there"},
    "instructions": {"instructions": "Be brief.", "input": "Hello there"},
    "empty instructions": {"instructions": "", "input": "Hello there"},
    "roles": {"input": [_said("Be brief.", "developer"), _said("Be kind.", "system"), _HELLO]},
    "parts": {"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]}]},
    "conversation": {"input": [_HELLO, {"role": "assistant", "content": "Hi."}, _said("Go on.")]},
    "an answer sent back": {"input": [_HELLO, _ANSWER, _said("Go on.")]},
    "an answer without id and status": {"input": [
        _HELLO, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        _said("Go on.")]},
    "an answer of two parts": {"input": [_HELLO, {**_ANSWER, "content": [
        {"type": "output_text", "text": "one", "annotations": []}, {"type": "output_text", "text": "two"}]}, _HELLO]},
    "an answer with a refusal behind it": {"input": [_HELLO, {**_ANSWER, "content": [
        {"type": "output_text", "text": "one", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "no"}]}]},
    "fields of a message": {"input": [{"type": "message", "status": "completed", "name": "bob", **_HELLO}]},
    "two answers": {"input": [_HELLO, _ANSWER, {**_ANSWER, "id": "msg_2"}, _said("Go on.")]},
    "tool call": {"input": [_HELLO, _CALL, _OUTPUT], "tools": [_TOOL, _BARE_TOOL]},
    "reasoning, answer and calls": {"input": [_HELLO, _REASONING, _ANSWER, _CALL, _NEXT_CALL, _OUTPUT,
                                              {**_OUTPUT, "call_id": "call_2"}], "tools": [_TOOL]},
    "answer after calls": {"input": [_HELLO, _CALL, _ANSWER, _OUTPUT]},
    "only reasoning": {"input": [_HELLO, {"type": "reasoning", "summary": []}, _said("Go on.")]},
    "two thoughts": {"input": [_HELLO, _REASONING, {**_REASONING, "id": "rs_2"}, _ANSWER, _said("Go on.")]},
    "summary": {"input": [_HELLO, {"type": "reasoning", "id": "rs_1", "content": None, "encrypted_content": None,
                                   "summary": [{"type": "summary_text", "text": "short"}]}, _said("Go on.")]},
    "custom tool": {"input": [_HELLO, _PATCH_CALL,
                              {"type": "custom_tool_call_output", "call_id": "call_3", "output": "ok"}],
                    "tools": [_PATCH, _TOOL]},
    "namespace": {"input": [_HELLO, {**_CALL, "namespace": "geo"}, _OUTPUT], "tools": [_SPACE]},
    "output of parts": {"input": [_HELLO, _CALL, {**_OUTPUT, "output": [{"type": "input_text", "text": "sunny"}]}]},
    "an output sent back": {"input": [_HELLO, _CALL, {**_OUTPUT, "id": "fco_1", "status": "completed"}]},
    "tools that are not shown": {"input": "Hello there", "tools": [_SEARCH]},
    "some tools that are not shown": {"input": "Hello there", "tools": [_SEARCH, _BARE_TOOL], "tool_choice": "none"},
    "image": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, _IMAGE]}]},
    "effort": {"input": "Hello there", "reasoning": {"effort": "high", "summary": "auto"}},
    "no effort": {"input": "Hello there", "reasoning": {"effort": None}},
    "no thinking": {"input": "Hello there", "reasoning": {"effort": "none"}},
    "template options": {"input": "Hello there", "chat_template_kwargs": {"enable_thinking": False},
                         "reasoning": {"effort": "low"}},
    "an answer to continue": {"input": [_HELLO, {**_ANSWER, "status": "incomplete"}]},
}  # fmt: skip
