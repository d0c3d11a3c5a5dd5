"""Requests of Anthropic's Messages API, as Claude Code and the SDK send them, with each kind of block."""

from __future__ import annotations

from typing import Any

__all__ = ["ANTHROPIC_BODIES"]

_TOOL = {
    "name": "get_weather",
    "description": "Says the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_BARE_TOOL = {"name": "now", "input_schema": {"properties": {}}, "strict": True}
_BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
_HELLO = {"role": "user", "content": "Hello there"}
_CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Zürich"}}
_CALLED = {"role": "assistant", "content": [{"type": "text", "text": "I look it up."}, _CALL]}


def _result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}


ANTHROPIC_BODIES: dict[str, dict[str, Any]] = {
    "text": {"messages": [_HELLO]},
    "system text": {"system": "Be brief.", "messages": [_HELLO]},
    "system blocks": {
        "system": [_BILLING, {"type": "text", "text": "You are Claude Code."}, {"type": "text", "text": "Be brief."}],
        "messages": [_HELLO],
    },
    "only a billing line": {"system": [_BILLING], "messages": [_HELLO]},
    "blocks": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "three"}]},
        ]
    },
    "inline system": {
        "system": "Be brief.",
        "messages": [_HELLO, {"role": "system", "content": "Remember."}, {"role": "user", "content": "Go on."},
                     {"role": "system", "content": [_BILLING, {"type": "text", "text": "Again."}]}],
    },
    "tool call": {"messages": [_HELLO, _CALLED], "tools": [_TOOL, _BARE_TOOL], "tool_choice": {"type": "any"}},
    "tool result": {
        "messages": [_HELLO, _CALLED, {"role": "user", "content": [_result("sunny"), {"type": "text", "text": "Ok"}]}],
        "tools": [_TOOL],
    },
    "tool result of parts": {
        "messages": [_HELLO, _CALLED, {"role": "user", "content": [
            _result([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, _IMAGE,
                     {"type": "tool_reference", "tool_name": "now"}])
        ]}],
        "tools": [_TOOL, _BARE_TOOL],
        "tool_choice": {"type": "tool", "name": "now"},
    },
    "empty tool result": {"messages": [_HELLO, _CALLED, {"role": "user", "content": [_result(None)]}]},
    "an assistant's tool result": {"messages": [_HELLO, {"role": "assistant", "content": [_result("sunny")]}]},
    "thinking": {
        "messages": [_HELLO, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "42"},
        ]}, {"role": "user", "content": "Why?"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "only thinking": {"messages": [_HELLO, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, _IMAGE]}]},
    "effort": {"messages": [_HELLO], "output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
    "no thinking": {"messages": [_HELLO], "thinking": {"type": "disabled"}},
    "template options": {"messages": [_HELLO], "chat_template_kwargs": {"enable_thinking": False}},
    "no tools": {"messages": [_HELLO], "tools": [_TOOL], "tool_choice": {"type": "none"}},
}  # fmt: skip
