"""OpenAI's Responses API of a simulated engine, over real sockets, with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.integration.simulator.conftest import Engine

WORDS = "the parser reads a file and returns each line of it as a value "
PATH = "/v1/responses"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def client(engine: Engine) -> openai.OpenAI:
    key = engine.client.headers["authorization"].removeprefix("Bearer ")
    return openai.OpenAI(base_url=str(engine.client.base_url.join("/v1")), api_key=key, max_retries=0)


def test_whole_answer_is_the_chats_in_the_form_of_responses(engine: Engine) -> None:
    chat = engine.chat("whole " + WORDS, max_tokens=40)
    choice = chat["choices"][0]
    with client(engine) as one:
        got = one.responses.create(model="tiny", input="whole " + WORDS, max_output_tokens=40)
    assert got.id.startswith("resp_")
    assert got.output_text == choice["message"]["content"]
    assert got.status == ("incomplete" if choice["finish_reason"] == "length" else "completed")
    usage = got.usage
    assert usage is not None
    assert usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert usage.output_tokens == chat["usage"]["completion_tokens"]
    assert usage.input_tokens_details.cached_tokens > 0, "the chat has the same prompt"


def test_stream_has_the_events_of_vllm(engine: Engine) -> None:
    with client(engine) as one:
        whole = one.responses.create(model="tiny", input="stream " + WORDS, max_output_tokens=20)
        events = list(
            one.responses.create(model="tiny", input="stream " + WORDS, max_output_tokens=20, stream=True)
        )  # fmt: skip
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * len(deltas), "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))  # type: ignore[union-attr]
    assert len(deltas) > 1
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "".join(deltas) == whole.output_text
    assert last.response.usage is not None


def test_response_has_the_id_that_the_request_names(engine: Engine) -> None:
    sent = {"model": "tiny", "input": WORDS, "max_output_tokens": 4, "request_id": "resp_1"}
    sent |= {"instructions": "Be brief.", "tools": [TOOL]}
    got = engine.client.post(PATH, json=sent).raise_for_status().json()
    assert (got["id"], got["instructions"], got["tools"]) == ("resp_1", "Be brief.", [TOOL])


@pytest.mark.parametrize(
    ("changed", "status", "word"),
    [
        ({"model": "nobody"}, 404, "nobody"),
        ({"model": None}, 400, "model"),
        ({"input": []}, 400, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0].type"),
        ({"background": True}, 400, "background"),
        ({"previous_response_id": "resp_1"}, 404, "resp_1"),
        ({"max_output_tokens": 0}, 400, "max_tokens"),
    ],
)
def test_wrong_request_is_refused(engine: Engine, changed: dict[str, Any], status: int, word: str) -> None:
    got = engine.client.post(PATH, json={"model": "tiny", "input": WORDS, **changed})
    assert got.status_code == status
    assert word in got.json()["error"]["message"]
