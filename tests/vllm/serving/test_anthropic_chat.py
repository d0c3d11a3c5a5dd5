"""The chat that vLLM makes of an Anthropic request, and the one of `plumage.rendering.anthropic`, are the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from support.anthropic_bodies import ANTHROPIC_BODIES
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

from plumage.rendering.anthropic import anthropic_as_chat, merges_system
from plumage.rendering.conversation import read_tools
from plumage_router.request.fields import COUNT_TOKENS, MESSAGES
from plumage_router.request.forbidden_fields import FORBIDDEN

TEMPLATES = sorted((Path(__file__).parents[2] / "contract" / "templates").glob("*.jinja"))
CLAUDE_CODE = "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"


def _plain(messages: Any) -> Any:
    """Without the iterators that pydantic makes of lists."""
    if isinstance(messages, dict):
        return {key: _plain(value) for key, value in messages.items()}
    if isinstance(messages, str | int | float | bool) or messages is None:
        return messages
    return [_plain(one) for one in messages]


@pytest.mark.parametrize("merge_system", [False, True])
@pytest.mark.parametrize("name", ANTHROPIC_BODIES)
def test_conversion_is_that_of_vllm(name: str, merge_system: bool) -> None:
    body = {"model": "tiny", "max_tokens": 2048, **copy.deepcopy(ANTHROPIC_BODIES[name])}
    theirs = AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest(**copy.deepcopy(body)),
        merge_inline_system=merge_system,
        disabled_thinking_effort="low",
    )
    ours, known = anthropic_as_chat(body, merge_system=merge_system, disabled_effort=lambda: "low")
    assert known
    assert ours["messages"] == _plain(theirs.messages)
    assert read_tools(ours.get("tools")) == (
        None if theirs.tools is None else read_tools([tool.model_dump() for tool in theirs.tools])
    )
    assert ours.get("reasoning_effort") == theirs.reasoning_effort
    assert ours.get("chat_template_kwargs") == theirs.chat_template_kwargs
    choice = theirs.tool_choice
    assert ours.get("tool_choice") == (choice if choice is None or isinstance(choice, str) else choice.model_dump())


@pytest.mark.parametrize("template", [*(path.read_text() for path in TEMPLATES), CLAUDE_CODE, "", "{{ now() }}"])
def test_templates_that_need_the_system_message_first(template: str) -> None:
    try:
        theirs = AnthropicServingMessages._detect_merge_inline_system(template)
    except TypeError:  # vLLM does not start with this template
        theirs = True
    assert merges_system(template) == theirs


@pytest.mark.parametrize(
    ("model", "known"), [(AnthropicMessagesRequest, MESSAGES), (AnthropicCountTokensRequest, COUNT_TOKENS)]
)
def test_every_request_field_is_known_or_refused(model: Any, known: Any) -> None:
    assert set(model.model_fields) - known.keys() - FORBIDDEN.keys() == set()
