"""A prompt joined from an outline equals the prompt that the template renders."""

from __future__ import annotations

import copy
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumage.rendering import ChatRenderer, Limits, TemplateError
from plumage.rendering.outlines import Outlines

FOLDER = Path(__file__).parents[2] / "contract" / "templates"
# Loops that end early, read previous and next messages, count, keep text, skip; heads and tails that read the whole
# list.
AWKWARD = {
    "breaks": "{% for m in messages %}{% if m.content == 'b' %}{% break %}{% endif %}{{ m.content }}{% endfor %}.",
    "continues": "{% for m in messages %}{% if m.content == 'a' %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "branches on the length": (
        "{% if messages|length > 2 %}{% for m in messages %}L{{ m.content }}{% endfor %}"
        "{% else %}{% for m in messages %}S{{ m.content }}{% endfor %}{% endif %}"
    ),
    "branches on the last": (
        "{% if messages[-1].role == 'user' %}{% set mark = 'u' %}{% endif %}"
        "{% for m in messages %}{{ mark }}{{ m.content }}{% endfor %}"
    ),
    "looks ahead": "{% for m in messages %}{{ m.content }}{{ (loop.nextitem or {}).role }}{% endfor %}",
    "counts down": "{% for m in messages %}{{ m.content }}{{ loop.revindex }}{% endfor %}",
    "looks far ahead": "{% for m in messages %}{{ m.content }}{{ (messages[loop.index0 + 2] or {}).role }}{% endfor %}",
    "looks back": "{% for m in messages %}{{ m.content }}{{ (loop.previtem or {}).role }}{% endfor %}",
    "looks around": "{% for m in messages %}{{ m.content }}{{ messages[loop.index0 - 1].role }}{% endfor %}",
    "keeps text": (
        "{% set ns = namespace(seen='', n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.seen = ns.seen + m.content %}{% if loop.index is divisibleby 2 %}{{ ns.seen }}{% endif %}"
        "{% endfor %}[{{ ns.n }} {{ ns.seen }}]"
    ),
    "keeps a message": (
        "{% set ns = namespace(last=none) %}{% for m in messages %}{{ ns.last }}|{% set ns.last = m %}{% endfor %}"
    ),
    "keeps the list": (
        "{% set ns = namespace(all=none) %}{% for m in messages %}{{ ns.all }}|{% set ns.all = messages %}{% endfor %}"
    ),
    "one namespace, two names": (
        "{% set a = namespace(x=0) %}{% set b = a if messages|length > 2 else namespace(x=0) %}"
        "{% for m in messages %}{% set a.x = a.x + 1 %}{{ b.x }}{{ m.content }}{% endfor %}{{ b.x }}"
    ),
    "drops the first": (
        "{% if messages[-1].role == 'tool' %}{% set messages = messages[1:] %}{% endif %}"
        "{% for m in messages %}{{ messages[0].role }}{{ m.content }}{% endfor %}"
    ),
    "starts by the length": (
        "{% for m in messages[(0 if messages|length > 3 else 1):] %}{{ m.content }}{{ loop.index }}{% endfor %}"
    ),
    "two views": (
        "{% set rest = messages[1:] if messages[-1].role == 'tool' else messages %}"
        "{% for m in messages %}{{ rest[0].role }}{{ m.content }}{% endfor %}"
    ),
    "two loops": "{% for m in messages %}{{ m.role }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "nested loops": (
        "{% for m in messages %}{% for n in messages %}{% if n == m %}{{ n.content }}{% endif %}{% endfor %}"
        "{% endfor %}"
    ),
    "a loop before": (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}{{ tools is none }}{{ m.content }}{% endfor %}"
    ),
    "filtered": "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% endfor %}",
    "else": "{% for m in messages[1:] %}{{ m.content }}{% else %}nobody else{% endfor %}",
    "tails": "{% for m in messages[1:] %}{{ messages[loop.index0].content }}{% endfor %}{{ messages|length }}",
    "a generator outside": (
        "{% set users = messages | selectattr('role', 'equalto', 'user') %}"
        "{% for m in messages %}{{ m.content }}{{ users | first | default('-') }}{% endfor %}"
    ),
    "whole list": "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages }}{{ messages | tojson }}",
    "sums": "{% for m in messages %}{{ (messages + [m])|length }}{{ ([m] + messages)[0].role }}{% endfor %}",
    "macro": (
        "{% macro show(m, i) %}{{ i }}{{ m.content }}{{ messages|length if loud }}{% endmacro %}"
        "{% set loud = messages[0].role == 'system' %}{% for m in messages %}{{ show(m, loop.index) }}{% endfor %}"
    ),
    "undefined": "{% set x = messages[0].nothing %}{% for m in messages %}{{ x }}{{ m.content }}{% endfor %}",
    "changed": "{% for m in messages %}{% if loop.changed(m.role) %}{{ m.role }}{% endif %}{{ m.content }}{% endfor %}",
    "cycler": "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{{ m.content }}{% endfor %}",
    "clock": "{% for m in messages %}{{ strftime_now('%Y') }}{{ m.content }}{% endfor %}",
    "recursive": "{% for m in messages recursive %}{{ m.content }}{{ loop.depth }}{% endfor %}",
    "captured": "{% set all %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ all|upper }}",
    "unpacks": "{% set a, b = messages[0], messages[1:] %}{% for m in b %}{{ a.role }}{{ m.content }}{% endfor %}",
}
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))} | AWKWARD
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"x": [1, True, None]}}}

texts = st.sampled_from(["a", " a", "b", "", "é\n", "<think>\nx\n</think>\n\ny"])
calls = [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
messages = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(lambda text: {"role": "assistant", "content": text}, texts),
    st.builds(lambda text: {"role": "system", "content": text}, texts),
    st.builds(lambda text: {"role": "assistant", "content": text, "tool_calls": calls}, texts),
    st.builds(lambda text: {"role": "tool", "content": text, "tool_call_id": "abcdefghi"}, texts),
    st.builds(lambda text: {"role": "assistant", "content": text, "reasoning": "r"}, texts),
)
alternating = st.lists(texts, min_size=1, max_size=8).map(
    lambda turns: [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
)
conversations = st.one_of(st.lists(messages, min_size=1, max_size=8), alternating)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests, many of which begin as an earlier one did: grown, shortened, repeated, or under other settings."""
    bodies: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(2, 6))):
        messages = draw(conversations)
        if bodies and draw(st.booleans()):
            earlier = draw(st.sampled_from(bodies))["messages"]
            messages = earlier[: draw(st.integers(1, len(earlier)))] + draw(
                st.sampled_from([[], messages, messages[:1]])
            )
        body = {"messages": messages, "add_generation_prompt": draw(st.booleans())}
        if draw(st.integers(0, 3)) == 0:
            body["tools"] = [TOOL]
        bodies.append(body)
    return bodies


def in_full(renderer: ChatRenderer, body: dict[str, Any]) -> str:
    return renderer._templates["default"].render(body["messages"], renderer._variables(body))


def outcome(render: Any) -> tuple[str, str]:
    try:
        return "prompt", render()
    except TemplateError as error:
        return "refused", str(error)


def renderer_of(name: str) -> ChatRenderer:
    """A renderer that has rendered nothing. Its template is compiled once for all examples."""
    renderer = copy.copy(compiled(name))
    template = copy.copy(renderer._templates["default"])
    if (known := template.outlines) is not None:
        template.outlines = Outlines(
            known._environment, known._template, known._wanted, developers=known._developers, limit=known._limit,
            most=known._most,
        )  # fmt: skip
    renderer._templates = {"default": template}
    return renderer


@cache
def compiled(name: str) -> ChatRenderer:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatRenderer(TEMPLATES[name], clock=lambda: datetime(2030, 5, 1), special_tokens=tokens, limits=Limits())


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_mixed_requests_render_as_in_full(name: str, history: list[dict[str, Any]]) -> None:
    renderer = renderer_of(name)
    for body in [*history, *history, *history]:
        assert outcome(lambda b=body: renderer.render_text(b)) == outcome(lambda b=body: in_full(renderer, b))


# They read texts in ways that an outline cannot represent, or they keep hidden state.
WITHOUT_OUTLINE = {
    "a generator outside", "captured", "changed", "command_like", "cycler", "keeps a message", "keeps the list",
    "macro", "nested loops", "parts_macro_like", "recursive", "tojson_heavy", "whole list",
}  # fmt: skip
SPOKEN = (
    "a",
    " a",
    "b",
    "",
    "é\n",
    "<think>\nx\n</think>\n\ny",
    "x-anthropic-billing-header: 1\nz",
    "\ue0c3plumage text 0\ue0c3",
)
plain = st.lists(
    st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(("user", "assistant", "system", "tool", "developer")),
        st.sampled_from(SPOKEN),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    conversation=plain,
    texts=st.lists(st.lists(st.sampled_from(SPOKEN), min_size=4, max_size=4), min_size=3, max_size=8),
)
def test_joined_prompt_equals_a_full_one(name: str, conversation: Any, texts: list[list[str]]) -> None:
    renderer = renderer_of(name)
    for spoken in texts:
        again = [{**message, "content": text} for message, text in zip(conversation, spoken, strict=False)]
        body = {"messages": again}
        assert outcome(lambda b=body: renderer.render_text(b)) == outcome(lambda b=body: in_full(renderer, b))


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_with_outlines(name: str) -> None:
    renderer = renderer_of(name)
    for number in range(4):
        messages = [{"role": role, "content": f"text {number}"} for role in ("system", "user", "assistant", "user")]
        outcome(lambda b={"messages": messages}: renderer.render_text(b))
    outlines = renderer._templates["default"].outlines
    assert (outlines is not None and outlines.used == 2) == (name not in WITHOUT_OUTLINE)


def test_long_conversations_have_no_outline() -> None:
    renderer = renderer_of("chatml")
    messages = [{"role": ("user", "assistant")[turn % 2], "content": "x"} for turn in range(49)]
    for length, used in ((48, 2), (49, 2)):
        for _ in range(4):
            renderer.render_text({"messages": messages[:length]})
        outlines = renderer._templates["default"].outlines
        assert outlines is not None
        assert outlines.used == used
