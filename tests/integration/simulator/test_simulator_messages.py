"""Anthropic's Messages API of a simulated engine, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.integration.simulator.conftest import Engine, running

WORDS = "the parser reads a file and returns each line of it as a value "
SLOW = {"preset": "gpu", "timeScale": 0.5}  # about 14 ms a token
PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
FORCED = {"tools": [{"name": "look", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "look"}}


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": text}], **more}


def message(engine: Engine, text: str, **more: Any) -> dict[str, Any]:
    return engine.client.post(PATH, json=asked(text, **more)).raise_for_status().json()  # type: ignore[no-any-return]


def events(engine: Engine, text: str, **more: Any) -> list[dict[str, Any]]:
    """A stream's events; each is checked to be `event: NAME`, `data: JSON` and a blank line."""
    with engine.client.stream("POST", PATH, json=asked(text, stream=True, **more)) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        body = response.read().decode()
    return list(read_events(body))


def read_events(body: str) -> Iterator[dict[str, Any]]:
    assert body.endswith("\n\n")
    for block in body[:-2].split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        yield event


def text_of(streamed: list[dict[str, Any]]) -> str:
    return "".join(event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta")


def test_whole_answer_is_the_chats_in_anthropics_form(engine: Engine) -> None:
    chat = engine.chat("whole " + WORDS, max_tokens=40)
    choice = chat["choices"][0]
    answer = message(engine, "whole " + WORDS)
    assert answer.pop("id").startswith("chatcmpl-")
    cached = answer["usage"]["cache_read_input_tokens"]
    assert answer == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": choice["message"]["content"]}],
        "model": "tiny",
        "stop_reason": {"stop": "end_turn", "length": "max_tokens"}[choice["finish_reason"]],
        "usage": {
            "input_tokens": chat["usage"]["prompt_tokens"] - cached,
            "output_tokens": chat["usage"]["completion_tokens"],
            "cache_read_input_tokens": cached,
        },
    }


def test_stop_reasons(engine: Engine) -> None:
    natural = message(engine, "how does it end?", max_tokens=2000)
    assert natural["stop_reason"] == "end_turn"
    assert "stop_sequence" not in natural
    text = natural["content"][0]["text"]
    assert message(engine, "how does it end?", max_tokens=1)["stop_reason"] == "max_tokens"
    stop = f" {text.split(' ')[1]}"
    cut = message(engine, "how does it end?", max_tokens=2000, stop_sequences=[stop])
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
    assert cut["content"] == [{"type": "text", "text": text[: text.index(stop)]}]
    last = events(engine, "how does it end?", max_tokens=2000, stop_sequences=[stop])[-2]
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


def test_stream_has_vllms_events_in_order_and_the_chats_text(engine: Engine) -> None:
    chat = engine.chat("streamed " + WORDS, max_tokens=40)
    start, block, *deltas, stop, end, last = events(engine, "streamed " + WORDS)
    prompt, completion = chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]
    assert start["message"].pop("id").startswith("chatcmpl-")
    assert start["message"] == {
        "type": "message", "role": "assistant", "content": [], "model": "tiny", "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": prompt, "output_tokens": 0},
    }  # fmt: skip
    assert block == {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
    assert {(delta["type"], delta["index"], delta["delta"]["type"]) for delta in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert len(deltas) > completion // 2, "one event for each step"
    assert text_of(deltas) == chat["choices"][0]["message"]["content"]
    assert stop == {"type": "content_block_stop", "index": 0}
    reason = {"stop": "end_turn", "length": "max_tokens"}[chat["choices"][0]["finish_reason"]]
    assert end["delta"] == {"stop_reason": reason, "stop_sequence": None}
    cached = end["usage"].pop("cache_read_input_tokens")
    assert end["usage"] == {"input_tokens": prompt - cached, "output_tokens": completion}
    assert last == {"type": "message_stop"}


def test_stream_without_text_has_no_block(engine: Engine) -> None:
    text = message(engine, "nothing to say")["content"][0]["text"]
    streamed = events(engine, "nothing to say", stop_sequences=[text[:1]])
    assert [event["type"] for event in streamed] == ["message_start", "message_delta", "message_stop"]
    whole = message(engine, "nothing to say", stop_sequences=[text[:1]])
    assert whole["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("stream", [False, True])
def test_warm_cache_and_count_add_up(engine: Engine, stream: bool) -> None:
    text = f"warm {stream} " + WORDS * 12
    system = [{"type": "text", "text": "be brief"}]

    def usage() -> dict[str, int]:
        if stream:
            return events(engine, text, system=system)[-2]["usage"]  # type: ignore[no-any-return]
        return message(engine, text, system=system)["usage"]  # type: ignore[no-any-return]

    cold, warm = usage(), usage()
    counted = engine.client.post(COUNT, json=asked(text, system=system)).raise_for_status().json()
    total = counted["input_tokens"]
    assert counted == {"input_tokens": total, "context_management": {"original_input_tokens": total}}
    for seen in (cold, warm):
        assert seen["input_tokens"] + seen["cache_read_input_tokens"] == total
    assert warm["cache_read_input_tokens"] == (total - 1) // 16 * 16 > cold["cache_read_input_tokens"]


def test_count_is_tokenizes_and_needs_no_max_tokens(engine: Engine) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": WORDS * 200}]
    body = {"model": "tiny", "system": "be brief", "messages": messages[1:], "stream": "ignored"}
    tokens = engine.client.post("/tokenize", json={"model": "tiny", "messages": messages}).json()["count"]
    assert engine.client.post(COUNT, json=body).json()["input_tokens"] == tokens
    assert tokens > 2000
    plain = engine.client.post(COUNT, json=asked("a", tools=FORCED["tools"])).json()
    assert engine.client.post(COUNT, json=asked("a", **FORCED)).json() == plain


def test_salts_do_not_share_blocks(engine: Engine) -> None:
    def cached(**more: Any) -> int:
        return int(message(engine, "salted " + WORDS * 12, **more)["usage"]["cache_read_input_tokens"])

    assert cached(cache_salt="one") == cached(cache_salt="two") < 100
    assert cached(cache_salt="one") >= 100


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}
BAD: list[tuple[str, Any, int, str, str]] = [
    (PATH, b"{", 400, "BadRequestError", "no JSON"),
    (PATH, {"model": "tiny", "max_tokens": 1}, 400, "BadRequestError", "messages"),
    (PATH, asked("a", model="other"), 404, "NotFoundError", "other"),
    (PATH, asked("a", model=None), 400, "BadRequestError", "model"),
    (PATH, asked("a", max_tokens=None), 400, "BadRequestError", "max_tokens"),
    (PATH, asked("a", max_tokens=0), 400, "BadRequestError", "max_tokens"),
    (PATH, asked("a", max_tokens=4096), 400, "BadRequestError", "maximum context length"),
    (PATH, asked("a " * 5000), 400, "BadRequestError", "maximum context length"),
    (PATH, asked("a", stream="yes"), 400, "BadRequestError", "stream"),
    (PATH, asked("a", stop_sequences="stop"), 400, "BadRequestError", "stop_sequences"),
    (PATH, asked("a", thinking="off"), 400, "BadRequestError", "thinking"),
    (PATH, asked("a", thinking={"type": "off"}), 400, "BadRequestError", "thinking.type"),
    (PATH, asked("a", thinking={"type": "enabled", "budget_tokens": 1024}), 400, "BadRequestError", "less than"),
    (PATH, asked("a", output_config={"format": {"schema": {}}}), 400, "BadRequestError", "output_config"),
    (PATH, asked("a", **FORCED), 400, "BadRequestError", "tool_choice"),
    (PATH, asked("a", messages=[{"role": "user", "content": [IMAGE]}]), 400, "BadRequestError", "image"),
    (PATH, asked("a", messages=[{"role": "robot", "content": "a"}]), 400, "BadRequestError", "messages[0].role"),
    (
        PATH,
        asked(
            "a", messages=[{"role": "system", "content": [{"type": "tool_removal"}]}, {"role": "user", "content": "a"}]
        ),
        400,
        "BadRequestError",
        "tool_removal",
    ),
    (COUNT, b"[]", 400, "BadRequestError", "object"),
    (COUNT, asked("a", model="other"), 404, "NotFoundError", "other"),
    (COUNT, asked("a", messages=[]), 400, "BadRequestError", "messages"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind", "says"), BAD)
def test_bad_requests_get_anthropics_error(
    engine: Engine, path: str, body: Any, status: int, kind: str, says: str
) -> None:
    response = engine.client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    error = response.json()["error"]
    assert response.json() == {"type": "error", "error": {"type": kind, "message": error["message"]}}
    assert response.status_code == status
    assert says in error["message"]
    assert engine.stats()["running"] == engine.stats()["waiting"] == 0


def test_key_and_method_are_asked_for(engine: Engine) -> None:
    for path in (PATH, COUNT):
        assert httpx.post(engine.url + path, json=asked("a")).status_code == 401
        assert engine.client.get(path).status_code == 405


def test_client_that_leaves_ends_its_request_and_a_draining_engine_takes_none() -> None:
    """An answer that takes most of a minute, so that only its end by the client explains that it ends."""
    body = asked("gone " + WORDS, max_tokens=3500)
    with running(device=SLOW, answerTokens=1_000_000) as slow, ThreadPoolExecutor() as threads:
        with slow.client.stream("POST", PATH, json={**body, "stream": True}) as response:
            chunks = response.iter_bytes()  # kept: a generator that is dropped closes the connection
            assert next(chunks).startswith(b"event: message_start\n")
            assert slow.stats()["running"] == 1
        assert slow.until(lambda stats: stats["running"] == 0)["kvUsage"] == 0
        with pytest.raises(httpx.ReadTimeout):
            slow.client.post(PATH, json=body, timeout=0.2)
        slow.until(lambda stats: stats["running"] == 0)
        assert slow.stats()["generatedTokens"] < 3500
        busy = threads.submit(slow.client.post, PATH, json={**body, "max_tokens": 100})
        slow.until(lambda stats: stats["running"] == 1)
        slow.admin.post("/v1/plumage/drain", json={"timeoutSeconds": 0})
        refused = slow.client.post(PATH, json=body)
        assert (refused.status_code, refused.json()["type"]) == (503, "error")
        assert refused.headers["retry-after"]
        assert busy.result().json()["stop_reason"] == "max_tokens"
