"""Stored responses of a simulated engine, over real sockets, with OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.integration.simulator.conftest import Engine, running

WORDS = "the parser reads a file and returns each line of it as a value "


@pytest.fixture(scope="module")
def storing() -> Iterator[Engine]:
    with running(maxModelLen=4096, storeResponses=True) as started:
        yield started


@pytest.fixture
def user(storing: Engine) -> Iterator[openai.OpenAI]:
    with client(storing) as made:
        yield made


def client(engine: Engine) -> openai.OpenAI:
    key = engine.client.headers["authorization"].removeprefix("Bearer ")
    return openai.OpenAI(base_url=str(engine.client.base_url.join("/v1")), api_key=key, max_retries=0)


def ended(user: openai.OpenAI, name: str) -> Any:
    while (found := user.responses.retrieve(name)).status in ("queued", "in_progress"):
        pass
    return found


def test_response_is_read_as_it_was_answered(user: openai.OpenAI) -> None:
    made = user.responses.create(model="tiny", input=WORDS, max_output_tokens=12)
    assert user.responses.retrieve(made.id) == made
    list(user.responses.create(model="tiny", input=WORDS, stream=True, extra_body={"request_id": "resp_streamed"}))
    assert user.responses.retrieve("resp_streamed").status in ("completed", "incomplete")
    unstored = user.responses.create(model="tiny", input=WORDS, max_output_tokens=4, store=False)
    with pytest.raises(openai.NotFoundError, match=f"Response with id '{unstored.id}' not found."):
        user.responses.retrieve(unstored.id)


def test_following_request_has_the_conversation_before_it(storing: Engine, user: openai.OpenAI) -> None:
    first = user.responses.create(model="tiny", input=WORDS, instructions="Be brief.", max_output_tokens=8)
    following = user.responses.create(model="tiny", input="and then", previous_response_id=first.id)
    chat = storing.chat(WORDS, first.output_text, "and then")
    assert following.usage is not None
    assert following.usage.input_tokens == chat["usage"]["prompt_tokens"], "instructions count once, as in vLLM"


def test_background_answers_at_once_and_is_read_later(user: openai.OpenAI) -> None:
    queued = user.responses.create(model="tiny", input="background " + WORDS, background=True, max_output_tokens=9)
    assert (queued.status, queued.usage) == ("queued", None)
    found = ended(user, queued.id)
    assert found.output_text == user.responses.create(
        model="tiny", input="background " + WORDS, max_output_tokens=9
    ).output_text  # fmt: skip
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        user.responses.cancel(queued.id)


def test_background_stream_is_continued_after_any_event(user: openai.OpenAI) -> None:
    stream = user.responses.create(model="tiny", input=WORDS, background=True, stream=True, max_output_tokens=9)
    events = list(stream)
    assert events[0].type == "response.created"
    name = events[0].response.id
    assert events[-1].type == "response.completed"
    again = list(user.responses.retrieve(name, stream=True, starting_after=2))
    assert [event.type for event in again] == [event.type for event in events[3:]]
    assert ended(user, name).status in ("completed", "incomplete")


def test_cancelled_response_stops(storing: Engine, user: openai.OpenAI) -> None:
    queued = user.responses.create(
        model="tiny", input=WORDS, background=True, max_output_tokens=3500, extra_body={"ignore_eos": True}
    )
    assert user.responses.cancel(queued.id).status == "cancelled"
    storing.until(lambda stats: stats["running"] + stats["waiting"] == 0)
    assert user.responses.retrieve(queued.id).status == "cancelled"


def test_nothing_is_stored_without_the_setting(engine: Engine) -> None:
    with client(engine) as one:
        made = one.responses.create(model="tiny", input=WORDS, max_output_tokens=4)
        with pytest.raises(openai.NotFoundError):
            one.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            one.responses.cancel(made.id)


@pytest.mark.parametrize("path", ["resp_1", "resp_1?stream=true"])
def test_unknown_response_has_the_answer_of_vllm(storing: Engine, path: str) -> None:
    got = storing.client.get(f"/v1/responses/{path}")
    assert got.status_code == 404
    assert got.json()["error"] == {
        "message": "Response with id 'resp_1' not found.", "type": "invalid_request_error", "param": "response_id",
        "code": 404,
    }  # fmt: skip
