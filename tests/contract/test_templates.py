"""Rendered prompts equal those of `transformers`, byte for byte, for templates in the style of today's models.

vLLM converts a request's messages before it calls `tokenizer.apply_chat_template`. `as_vllm_passes` repeats that
conversion for text, so the test covers the whole path from the request's body.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from support.needs import module

from plumage.models import resolve
from plumage.rendering import ChatRenderer, MultimodalCut, TemplateError

TEMPLATES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
WANTS_PARTS = {"gemma_like", "parts_like", "parts_macro_like"}
TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Says "sun" or <rain> & more, in °C',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "day": {"type": "integer", "enum": [0, 1]}},
            "required": ["city"],
        },
    },
}
BARE_TOOL = {"function": {"parameters": {"b": 1, "a": 2}, "name": "bare"}, "type": "function"}

SYSTEM = {"role": "system", "content": "  Be brief. "}
HELLO = {"role": "user", "content": "Hello there\n"}
ANSWER = {"role": "assistant", "content": " Hi. "}
ODD = {
    "role": "user",
    "content": "e\u0301é ﬁ 日本 🇺🇳👩‍👩‍👧 \u200b\u00a0\ufeff \x00\x1b \t\r\n <|im_end|> {{ 7*7 }} {% raw %} '\"\\ "
    "▁ </s>",
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "type": "function",
            "id": "abcdefghi",
            "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "day": 1, "deep": [{"x": null}]}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"sky": "klar", "t": 21.50}'}
THOUGHT = {"role": "assistant", "content": "42", "reasoning": "six by seven"}
INLINE_THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n42"}
TEXT_PARTS = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}, "three"]}

BODIES: dict[str, dict[str, Any]] = {
    "one user": {"messages": [HELLO]},
    "system and user": {"messages": [SYSTEM, HELLO]},
    "six messages": {"messages": [SYSTEM, HELLO, ANSWER, ODD, ANSWER, HELLO]},
    "ends with assistant": {"messages": [HELLO, ANSWER], "add_generation_prompt": False},
    "two users": {"messages": [HELLO, ODD]},
    "starts with assistant": {"messages": [ANSWER, HELLO]},
    "late system": {"messages": [HELLO, ANSWER, SYSTEM, HELLO]},
    "odd text": {"messages": [ODD]},
    "empty text": {"messages": [{"role": "user", "content": ""}]},
    "null content": {"messages": [{"role": "user", "content": None}]},
    "unknown role": {"messages": [{"role": "critic", "content": "no"}, HELLO]},
    "tools offered": {"messages": [SYSTEM, HELLO], "tools": [WEATHER, BARE_TOOL]},
    "tools used": {"messages": [HELLO, CALL, RESULT, ANSWER, HELLO], "tools": [WEATHER]},
    "tool answers last": {"messages": [SYSTEM, HELLO, CALL, RESULT], "tools": [WEATHER]},
    "two answers": {"messages": [HELLO, {**CALL, "tool_calls": CALL["tool_calls"] * 2}, RESULT, RESULT]},
    "no calls": {"messages": [HELLO, {**ANSWER, "tool_calls": []}, HELLO]},
    "thoughts": {"messages": [HELLO, THOUGHT, HELLO, INLINE_THOUGHT, HELLO]},
    "thought last": {"messages": [HELLO, THOUGHT], "add_generation_prompt": False},
    "text parts": {"messages": [SYSTEM, TEXT_PARTS]},
    "documents": {"messages": [HELLO], "documents": [{"title": "A", "text": "one"}, {"title": "Ü", "text": "two"}]},
    "named": {"messages": [{**HELLO, "name": "ann"}, ANSWER, HELLO]},
    "no thinking": {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": False, "thinking": True}},
    "effort": {"messages": [HELLO], "reasoning_effort": "low", "chat_template_kwargs": {"date_string": "1 May 2030"}},
    "continued": {
        "messages": [HELLO, {"role": "assistant", "content": "The sum is "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = module("transformers")
    folder = resolve("builtin://tiny-chat")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **TOKENS)


def as_vllm_passes(body: dict[str, Any], parts: bool) -> list[dict[str, Any]]:
    passed = []
    for message in json.loads(json.dumps(body["messages"])):
        content = message.get("content") or []
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        if message.get("content") == "":
            content = [{"type": "text", "text": ""}]
        whole = "\n".join(part["text"] for part in content)
        result = {"role": message["role"], "content": content if parts and message["role"] != "tool" else whole}
        if message.get("tool_calls"):
            result["tool_calls"] = [
                {
                    "id": call["id"],
                    "function": {
                        "arguments": json.loads(call["function"]["arguments"]),
                        "name": call["function"]["name"],
                    },
                    "type": "function",
                }
                for call in message["tool_calls"]
            ]
        if message.get("reasoning"):
            result["reasoning"] = result["reasoning_content"] = message["reasoning"]
        for key in ("name", "tool_call_id"):
            if key in message:
                result[key] = message[key]
        passed.append(result)
    return passed


def tools_as_vllm_dumps(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    fields = ("name", "description", "parameters")
    return [{"type": "function", "function": {key: tool["function"].get(key) for key in fields}} for tool in tools]


def transformers_prompt(tokenizer: Any, name: str, body: dict[str, Any]) -> str:
    extra = dict(body.get("chat_template_kwargs") or {})
    if "reasoning_effort" in body:
        extra |= {"reasoning_effort": body["reasoning_effort"], "enable_thinking": True}
    prompt = tokenizer.apply_chat_template(
        as_vllm_passes(body, parts=name in WANTS_PARTS),
        tools=tools_as_vllm_dumps(body.get("tools")),
        documents=body.get("documents"),
        chat_template=TEMPLATES[name],
        tokenize=False,
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
        **extra,
    )
    assert isinstance(prompt, str)
    return prompt


def outcome(render: Any) -> tuple[str, str]:
    try:
        return "prompt", render()
    except Exception as error:
        return "refused", type(error).__name__


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_equals_that_of_transformers(tokenizer: Any, name: str, case: str) -> None:
    body = BODIES[case]
    renderer = ChatRenderer(TEMPLATES[name], clock=datetime.now, special_tokens=TOKENS)
    kind, expected = outcome(lambda: transformers_prompt(tokenizer, name, body))
    for _ in range(2):  # the second time from the cache
        if kind == "refused":
            with pytest.raises(TemplateError):
                renderer.render_text(body)
        else:
            assert renderer.render_text(body) == expected


def test_most_pairs_of_template_and_conversation_render(tokenizer: Any) -> None:
    """Every template refuses or prints something, and none is left out by accident."""
    assert len(TEMPLATES) >= 12
    kinds = [
        outcome(lambda n=name, b=body: transformers_prompt(tokenizer, n, b))[0]
        for name in TEMPLATES
        for body in BODIES.values()
    ]
    assert kinds.count("prompt") > 0.8 * len(kinds)
    assert kinds.count("refused") > 10


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_loop_over_content_get_parts(name: str) -> None:
    renderer = ChatRenderer(TEMPLATES[name], clock=datetime.now, special_tokens=TOKENS)
    assert (renderer._templates["default"].content_format == "openai") == (name in WANTS_PARTS)


def test_template_error_reaches_the_client_unchanged() -> None:
    renderer = ChatRenderer(TEMPLATES["mistral_like"], clock=datetime.now, special_tokens=TOKENS)
    with pytest.raises(TemplateError, match="must take turns after the system message"):
        renderer.render_text({"messages": [HELLO, HELLO]})


def test_tool_call_keys_have_the_order_of_the_api_types() -> None:
    """vLLM validates messages with these types, and templates print calls with `tojson`."""
    types = module("openai.types.chat")
    call = {"type": "function", "index": 0, "function": {"name": "f", "arguments": "{}", "x": 1}, "id": "abcdefghi"}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    adapter = TypeAdapter(types.ChatCompletionAssistantMessageParam)
    validated = [dict(call) for call in adapter.validate_python(message)["tool_calls"]]
    renderer = ChatRenderer("{{ messages[0].tool_calls | tojson }}", clock=datetime.now)
    printed = json.loads(renderer.render_text({"messages": [message]}))
    assert [list(call) for call in printed] == [list(call) for call in validated]
    assert [list(call["function"]) for call in printed] == [list(call["function"]) for call in validated]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


@pytest.mark.parametrize("media", [IMAGE, AUDIO])
@pytest.mark.parametrize("name", ["parts_like", "parts_macro_like"])
def test_prompt_ends_where_the_first_image_or_audio_begins(tokenizer: Any, name: str, media: dict[str, Any]) -> None:
    renderer = ChatRenderer(TEMPLATES[name], clock=datetime.now, special_tokens=TOKENS)
    look = {"role": "user", "content": [{"type": "text", "text": "Look:"}, media, {"type": "text", "text": "What?"}]}
    body = {"messages": [SYSTEM, HELLO, ANSWER, look, ANSWER, HELLO]}
    cut = renderer.render_text(body)
    with_text_only = {**look, "content": [look["content"][0]]}
    whole = transformers_prompt(tokenizer, name, {"messages": [SYSTEM, HELLO, ANSWER, with_text_only]})
    assert cut.endswith("Look:")
    assert whole.startswith(cut)
    assert MultimodalCut.MARK not in cut


def test_string_template_omits_a_message_with_media() -> None:
    renderer = ChatRenderer(TEMPLATES["chatml"], clock=datetime.now, special_tokens=TOKENS)
    look = {"role": "user", "content": [{"type": "text", "text": "Look:"}, IMAGE]}
    before = renderer.render_text({"messages": [SYSTEM, HELLO], "add_generation_prompt": False})
    assert renderer.render_text({"messages": [SYSTEM, HELLO, look, ANSWER]}) == before + "<|im_start|>user\n"
