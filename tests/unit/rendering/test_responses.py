"""Requests of the Responses API become chats. tests/vllm compares each of them with vLLM's own conversion."""

from __future__ import annotations

from typing import Any

import pytest
from support.responses_bodies import RESPONSES_BODIES

from plumage.rendering.errors import RequestShapeError
from plumage.rendering.responses import responses_as_chat

HELLO = {"role": "user", "content": "Hello there"}


@pytest.mark.parametrize("name", RESPONSES_BODIES)
def test_every_usual_request_is_converted_completely(name: str) -> None:
    assert responses_as_chat(RESPONSES_BODIES[name]).known


def test_items_of_one_turn_become_one_message() -> None:
    chat, _ = responses_as_chat(RESPONSES_BODIES["reasoning, answer and calls"])
    assistant = chat["messages"][1]
    assert (assistant["reasoning"], assistant["content"]) == ("hm", "I look it up.")
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_1", "call_2"]
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool", "tool"]


def test_tools_of_a_namespace_and_free_text_become_functions() -> None:
    chat, _ = responses_as_chat(RESPONSES_BODIES["namespace"])
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["geo__get_weather"]
    chat, _ = responses_as_chat(RESPONSES_BODIES["custom tool"])
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["apply_patch", "get_weather"]
    assert chat["tools"][0]["function"]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_1"},
        {"previous_input_messages": [{"role": "user"}]},
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        {"input": [HELLO, {"type": "reasoning", "summary": [], "status": "incomplete"}]},
        {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}]},
        {"input": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]}]},
    ],
)
def test_what_is_not_converted_is_not_known(more: dict[str, Any]) -> None:
    assert not responses_as_chat({"input": "x", **more}).known


def test_truncation_is_the_engines_business() -> None:
    chat, known = responses_as_chat({"input": "x", "truncation": "auto", "max_output_tokens": 7})
    assert known
    assert (chat["truncate_prompt_tokens"], chat["max_tokens"]) == (-1, 7)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "message"}]}, "input[0].role"),
        ({"input": [{"role": ["user"]}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": 5}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "reasoning", "role": "user", "summary": ""}]}, "input[0].role"),
        ({"input": [{"type": "reasoning", "summary": ""}]}, "input[0].summary"),
        ({"input": [{"type": "reasoning", "content": [{"text": "h", "uuid": "u", "image_url": "http://x"}]}]},
         "input[0].content[0].image_url"),
        ({"input": [{"type": "function_call", "role": "user"}]}, "input[0].role"),
        ({"input": [{"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "x", "annotations": "", "uuid": "u"}]}]}, "input[0].content[0].uuid"),
        ({"input": [{"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "x", "annotations": ""}]}]}, "input[0].content[0].annotations"),
        ({"input": [{"role": "assistant", "content": ["x"]}]}, "input[0].content"),
        ({"input": "x", "reasoning": "high"}, "reasoning"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
    ],
)  # fmt: skip
def test_wrong_shape_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestShapeError) as error:
        responses_as_chat(body)
    assert error.value.field == field
