"""An engine reads the same prompt from a request as routers hash: special tokens added or not, prompts cut to their
ends.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from plumage.models import resolve
from plumage.rendering import ByteTable, ChatRenderer, ModelFolder
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.simulator.http.prompts import Prompts
from plumage_engine.simulator.http.protocol import ApiError, read_generation

FOLDER = ModelFolder.load(resolve("builtin://tiny-chat"))
TABLE = ByteTable.from_tokenizer_json(FOLDER.tokenizer_json)
RENDERER = ChatRenderer.from_folder(FOLDER, clock=datetime.now)
CONTEXT = 256
PROMPTS = Prompts(
    SimulatorConfig.model_validate(
        {"model": "tiny", "modelFolder": str(resolve("builtin://tiny-chat")), "port": 0, "maxModelLen": CONTEXT}
    ),
    FOLDER,
)
WORDS = "the parser reads a file and returns each line " * 4
BOS = list(PROMPTS._text._before)


def prompt_ids(**body: Any) -> list[int]:
    generation = read_generation({"max_tokens": 4, **body}, chat="messages" in body)
    job = PROMPTS.job(generation, asyncio.run(PROMPTS.token_ids(PROMPTS.read(generation))), "r")
    return list(job.origin.token_ids[: job.request.prompt_tokens])


@pytest.mark.parametrize("special", [None, True, False])
@pytest.mark.parametrize("body", [{"prompt": WORDS}, {"messages": [{"role": "user", "content": WORDS}]}])
def test_engine_and_router_add_the_same_special_tokens(body: dict[str, Any], special: bool | None) -> None:
    asked = body if special is None else {**body, "add_special_tokens": special}
    bare = body["prompt"] if "prompt" in body else RENDERER.render_text(body)
    text = (
        RENDERER.render_completion(body["prompt"], special is not False)
        if "prompt" in body
        else RENDERER.render_chat(asked)
    )
    assert TABLE.decode(prompt_ids(**asked)) == text
    added = special if special is not None else "prompt" in body
    assert text == (b"<|bos|>" if added else b"") + bare.encode()


def test_prompt_is_cut_to_its_end_after_the_leading_special_tokens() -> None:
    whole = prompt_ids(prompt=WORDS)
    assert BOS
    assert whole[: len(BOS)] == BOS
    assert prompt_ids(prompt=WORDS, truncate_prompt_tokens=10) == [*BOS, *whole[-(10 - len(BOS)) :]]
    assert prompt_ids(prompt=WORDS, truncate_prompt_tokens=10, add_special_tokens=False) == whole[-10:]
    assert prompt_ids(prompt=whole, truncate_prompt_tokens=10) == whole[-10:]
    assert prompt_ids(prompt=WORDS, truncate_prompt_tokens=len(whole)) == whole
    chat = {"messages": [{"role": "user", "content": WORDS}]}
    assert prompt_ids(**chat, truncate_prompt_tokens=7) == prompt_ids(**chat)[-7:]


def test_minus_one_keeps_what_fits_beside_the_answer() -> None:
    assert len(prompt_ids(prompt=WORDS * 20, truncate_prompt_tokens=-1, max_tokens=56)) == CONTEXT - 56
    with pytest.raises(ApiError, match="maximum context length"):
        prompt_ids(prompt=WORDS * 20)


@pytest.mark.parametrize("kept", [-2, 1.5, True, "9", CONTEXT - 3])
def test_impossible_length_is_refused(kept: Any) -> None:
    with pytest.raises(ApiError, match="truncate_prompt_tokens") as refused:
        prompt_ids(prompt=WORDS, truncate_prompt_tokens=kept)
    assert (refused.value.status, refused.value.param) == (400, "truncate_prompt_tokens")


def test_prompt_cut_to_nothing_is_empty() -> None:
    with pytest.raises(ApiError, match="no tokens"):
        prompt_ids(prompt=WORDS, truncate_prompt_tokens=0)


@pytest.mark.parametrize(
    "field",
    [
        {"stop_token_ids": [3]},
        {"include_stop_str_in_output": True},
        {"logit_bias": {"5": -100}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"top_logprobs": 2},
    ],
)
def test_unsupported_fields_are_refused_by_name(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(ApiError, match=name) as refused:
        prompt_ids(messages=[{"role": "user", "content": "x"}], **field)
    assert refused.value.param == name
