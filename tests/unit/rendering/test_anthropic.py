"""Requests of Anthropic's Messages API become chats; vLLM's own conversion is compared in tests/vllm/serving."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.anthropic_bodies import ANTHROPIC_BODIES

from plumage.rendering import ChatRenderer
from plumage.rendering.anthropic import anthropic_as_chat, merges_system
from plumage.rendering.errors import RenderingError, RequestShapeError

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
STRICT = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}" \
    "<{{ m.role }}>{{ m.content }}{% endfor %}"  # fmt: skip
THINKS = CHATML + "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"


def renderer(template: str) -> ChatRenderer:
    return ChatRenderer(template, clock=lambda: datetime(2026, 1, 1))


def rendered(template: str, name: str) -> str:
    made = renderer(template)
    return made.render_chat(made.anthropic_as_chat(ANTHROPIC_BODIES[name]).body).decode()


def test_attribution_line_is_not_part_of_the_prompt() -> None:
    assert rendered(CHATML, "system blocks") == "<system>You are Claude Code.Be brief.<user>Hello there"


def test_inline_system_messages_stay_where_the_template_allows_them() -> None:
    assert not merges_system(CHATML)
    assert rendered(CHATML, "inline system") == (
        "<system>Be brief.<user>Hello there<system>Remember.<user>Go on.<system>Again."
    )


def test_inline_system_messages_move_to_the_front_of_a_strict_template() -> None:
    assert merges_system(STRICT)
    assert rendered(STRICT, "inline system") == "<system>Be brief.Remember.Again.<user>Hello there<user>Go on."


def test_tool_results_come_before_their_message() -> None:
    body = renderer(CHATML).anthropic_as_chat(ANTHROPIC_BODIES["tool result"]).body
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize(("template", "effort"), [(CHATML, "low"), (THINKS, "none")])
def test_effort_of_disabled_thinking_follows_the_template(template: str, effort: str) -> None:
    made = renderer(template)
    for _ in range(2):
        assert made.anthropic_as_chat(ANTHROPIC_BODIES["no thinking"]).body["reasoning_effort"] == effort


def test_a_result_of_another_kind_is_left_to_the_engine() -> None:
    found = {"type": "search_result", "source": "https://x", "title": "t", "content": [{"type": "text", "text": "a"}]}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [found, {"type": "text", "text": "b"}]}
    body = renderer(CHATML).anthropic_as_chat({"messages": [{"role": "user", "content": [result]}]}).body
    assert body["messages"] == [{"role": "tool", "tool_call_id": "1", "content": "b"}]


def test_shape_leaves_out_what_is_serialized() -> None:
    call = {"type": "tool_use", "id": "1", "name": "now", "input": {"much": "text"}}
    messages = [{"role": "assistant", "content": [call]}]
    shape = renderer(CHATML).anthropic_as_chat({"messages": messages}, shape_only=True)
    assert shape.body["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert not shape.known


def test_call_without_an_id_is_not_known() -> None:
    call = {"type": "tool_use", "name": "now", "input": {}}
    assert not renderer(CHATML).anthropic_as_chat({"messages": [{"role": "assistant", "content": [call]}]}).known


def test_tools_that_change_within_a_conversation_are_not_known() -> None:
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "now"}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": [change]}]
    assert not renderer(CHATML).anthropic_as_chat({"messages": messages}).known


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({}, "messages"),
    "messages of text": ({"messages": "Hi"}, "messages"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "role of another type": ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    "content": ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "block": ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
    "type": ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages[0].content[0].type"),
    "unknown type": ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
    "text": ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
    "source": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": "x"}]}]},
        "messages[0].content[0].source",
    ),
    "data of an image": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"data": ["x"]}}]}]},
        "messages[0].content[0].source.data",
    ),
    "image of a result": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [
            {"type": "image", "source": {"type": "url", "url": 1}}]}]}]},
        "messages[0].content[0].content[0].source.url",
    ),
    "system": ({"system": 1, "messages": [{"role": "user", "content": "x"}]}, "system"),
    "thinking": ({"thinking": "no", "messages": [{"role": "user", "content": "x"}]}, "thinking"),
    "tools": ({"tools": {}, "messages": [{"role": "user", "content": "x"}]}, "tools"),
    "schema": ({"tools": [{"name": "a"}], "messages": [{"role": "user", "content": "x"}]}, "tools[0].input_schema"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_type_names_its_field(name: str) -> None:
    body, field = WRONG[name]
    with pytest.raises(RequestShapeError) as refused:
        anthropic_as_chat(body, merge_system=False, disabled_effort=lambda: "none")
    assert refused.value.field == field


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["text", "user", "tool_result", "image", ""]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "role", "content", "text", "source", "input", "tool_use_id", "name", "tool"]),
        inner, max_size=4,
    ),
    max_leaves=14,
)  # fmt: skip


@given(
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": _ANY}),
             max_size=3),
    _ANY, _ANY, st.booleans(),
)  # fmt: skip
def test_any_request_is_converted_or_refused(messages: list[Any], system: Any, tools: Any, merge: bool) -> None:
    body = {"messages": messages, "system": system, "tools": tools, "tool_choice": tools, "thinking": system}
    try:
        chat, _ = anthropic_as_chat(body, merge_system=merge, disabled_effort=lambda: "none")
        renderer(CHATML).render_chat(chat)
    except RenderingError:
        pass
