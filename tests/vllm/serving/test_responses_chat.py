"""The chat that vLLM makes of a request of the Responses API, and the one of `plumage.rendering.responses`, are the
same."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
from support.responses_bodies import RESPONSES_BODIES
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts

from plumage.rendering.conversation import read_tools
from plumage.rendering.responses import responses_as_chat
from plumage_router.request.fields import RESPONSES
from plumage_router.request.forbidden_fields import FORBIDDEN

_MODEL_ONLY = frozenset(("type", "status"))


def _plain(value: Any) -> Any:
    """Without the models and iterators that pydantic makes."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    assert isinstance(value, Iterable)
    return [_plain(one) for one in value]


def _seen(messages: Any) -> list[dict[str, Any]]:
    """What of messages a template can see: an item's own type is not in it."""
    return [{key: one for key, one in message.items() if key not in _MODEL_ONLY} for message in _plain(messages)]


@pytest.mark.parametrize("name", RESPONSES_BODIES)
def test_conversion_is_that_of_vllm(name: str) -> None:
    body = {"model": "tiny", **RESPONSES_BODIES[name]}
    request = ResponsesRequest(**copy.deepcopy(body))
    theirs = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    ours, known = responses_as_chat(body)
    assert known
    assert ours["messages"] == _seen(theirs)
    assert read_tools(ours.get("tools")) == construct_tool_dicts(request.tools, request.tool_choice)
    parameters = request.build_chat_params(None, "auto").chat_template_kwargs
    effort = {name: ours[name] for name in ("reasoning_effort",) if name in ours}
    assert parameters.get("reasoning_effort") == effort.get("reasoning_effort")
    assert bool(parameters.get("continue_final_message")) == bool(ours.get("continue_final_message"))
    assert parameters["add_generation_prompt"] == ours.get("add_generation_prompt", True)


def test_every_request_field_is_known_or_refused() -> None:
    assert set(ResponsesRequest.model_fields) - RESPONSES.keys() - FORBIDDEN.keys() == set()
