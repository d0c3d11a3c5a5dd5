"""Allowed and refused fields, and their effect on the chunk chain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plumage.settings.router_config import RouterConfig

LONG = "a prompt that is longer than one chunk of the chain " * 20
# The second turn of litellm 1.x: it sends back the message that it made of the first answer.
LITELLM = [
    {"role": "user", "content": LONG},
    {"content": "Some answer.", "role": "assistant", "tool_calls": None, "function_call": None,
     "provider_specific_fields": {"refusal": None, "reasoning": None}},
    {"role": "user", "content": "And then?"},
]  # fmt: skip
HARMLESS: list[dict[str, Any]] = [
    {"audio": {"voice": "alloy", "format": "wav"}},
    {"moderation": {}},
    {"prediction": {"type": "content", "content": "x"}},
    {"prompt_cache_options": {}},
    {"prompt_cache_retention": "24h"},
    {"web_search_options": {}},
    {"bad_words": ["no"]},
    {"allowed_token_ids": [1, 2]},
    {"return_token_ids": True},
    {"mm_processor_kwargs": {}},
    {"thinking_token_budget": 64},
    {"session_id": "s"},
    {"stream_interval": 4},
    {"truncation_side": "left"},
]


def _chunks(running: Any, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, bool]:
    """The length of the chain that the request is routed by, and whether its hits count for learning."""
    prompt = running.router.pool.reader.read(path.encode(), json.dumps(body).encode())
    return len(prompt.chunks), prompt.plain


@pytest.mark.parametrize("more", HARMLESS, ids=lambda more: next(iter(more)))
async def test_known_fields_reach_engine_and_keep_chain(start: Any, kit: Any, more: dict[str, Any]) -> None:
    running = await start(engines=1)
    body = kit.chat(LONG, **more)
    assert (await running.post(body)).status == 200
    assert running.engines[0].seen[0].json == body
    assert _chunks(running, body) == _chunks(running, kit.chat(LONG))


async def test_litellm_second_turn_keeps_chain(start: Any) -> None:
    running = await start(engines=1)
    body = {"model": "tiny", "messages": LITELLM}
    assert (await running.post(body)).status == 200
    assert running.engines[0].seen[0].json == body
    plain = [{name: message[name] for name in ("role", "content")} for message in LITELLM]
    assert _chunks(running, body) == _chunks(running, {"model": "tiny", "messages": plain}) != (0, True)


async def test_unknown_message_field_passes_without_chain(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    body = kit.chat(LONG)
    body["messages"][0]["surprise"] = {"x": 1}
    assert (await running.post(body)).status == 200
    assert running.engines[0].seen[0].json == body
    assert _chunks(running, body) == (0, False)


@pytest.mark.parametrize(
    ("path", "more", "followed"),
    [
        ("/v1/chat/completions", {"prompt_logprobs": 0}, False),
        ("/v1/chat/completions", {"prompt_logprobs": None}, True),
        ("/v1/chat/completions", {"echo": True}, False),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}, True),
        ("/v1/completions", {"prompt_logprobs": 2}, False),
        ("/v1/completions", {"echo": True}, True),
        ("/v1/completions", {"echo": True, "logprobs": 0}, False),
        ("/v1/completions", {"logprobs": 2}, True),
    ],
)
async def test_prompt_logprobs_has_no_chain(
    start: Any, kit: Any, path: str, more: dict[str, Any], followed: bool
) -> None:
    running = await start(engines=1)
    body = {**kit.chat(LONG), **more} if "chat" in path else {"model": "tiny", "prompt": LONG, **more}
    length, plain = _chunks(running, body, path)
    assert (length > 0, plain) == (followed, followed)
    assert (await running.post(body, path=path)).status == 200


@pytest.mark.parametrize(
    ("field", "value", "followed"),
    [("priority", 1, True), ("chat_template", "{{ x }}", False), ("vllm_xargs", {}, False), ("surprise", 1, False)],
)
async def test_pool_may_allow_more_fields(start: Any, kit: Any, field: str, value: Any, followed: bool) -> None:
    running = await start(engines=1, allowedRequestFields=["other", field])
    body = kit.chat(LONG, **{field: value})
    assert (await running.post(body)).status == 200
    assert running.engines[0].seen[0].json == body
    assert (_chunks(running, body)[0] > 0) is followed
    refused = await running.post(kit.chat(LONG, another=1))
    assert (refused.status, refused.error["param"]) == (400, "another")
    assert "spec.router.allowedRequestFields" in refused.error["message"]


async def test_allowed_fields_change_at_runtime(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    body, router = kit.chat(priority=1), running.router
    assert (await running.post(body)).error["code"] == "field_not_allowed"
    config = router.config
    router.reconfigure(RouterConfig.model_validate({**config.model_dump(), "allowed_request_fields": ["priority"]}))
    assert (await running.post(body)).status == 200
    router.reconfigure(config)
    assert (await running.post(body)).error["code"] == "field_not_allowed"


async def test_cache_salt_of_tenant_cannot_be_allowed(start: Any, kit: Any, tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme sk-acme-0123456789abcdef\n")
    running = await start(engines=1, allowedRequestFields=["cache_salt"], auth={"apiKeysFile": str(keys)})
    answer = await running.post(kit.chat(cache_salt="x"), authorization="Bearer sk-acme-0123456789abcdef")
    assert (answer.status, answer.error["param"]) == (400, "cache_salt")
