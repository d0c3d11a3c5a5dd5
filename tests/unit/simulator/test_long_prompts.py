"""A text that takes long to tokenize does not block other requests: it is refused beforehand, or waits in its own
thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.conditions import until

from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.simulator.http.completions import Completions
from plumage_engine.simulator.http.prompts import LONG, Prompts
from plumage_engine.simulator.http.protocol import ApiError, Generation, read_generation
from plumage_engine.simulator.model.text import Text

FOLDER = ModelFolder.load(resolve("builtin://tiny-chat"))
MODEL = {"model": "tiny", "modelFolder": str(resolve("builtin://tiny-chat")), "port": 0}
CONTEXT = 4096
TEXT = "word " * LONG  # some four times the context


@pytest.fixture
def prompts() -> Iterator[Prompts]:
    made = Prompts(SimulatorConfig.model_validate({**MODEL, "maxModelLen": CONTEXT}), FOLDER)
    yield made
    made.close()


class Slow:
    """Wraps a text's `encode`, which returns once it is released. `begun`: the texts of its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()
        encode = Text.encode

        def slowly(text: Text, given: str, *, add_special_tokens: bool) -> list[int]:
            self.begun.append(given)
            assert self.go.wait(30), "nobody could release it: it blocks the loop"
            return encode(text, given, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(Text, "encode", slowly)


def generation(prompt: str, **more: Any) -> Generation:
    return read_generation({"prompt": prompt, "max_tokens": 4, **more}, chat=False)


async def token_ids(prompts: Prompts, prompt: str, **more: Any) -> list[int]:
    return await prompts.token_ids(prompts.read(generation(prompt, **more)))


async def test_text_that_is_surely_too_long_is_refused_without_tokenizing(
    prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = Text(FOLDER.tokenizer_json).longest
    assert longest
    slow = Slow(monkeypatch)
    for body in (
        {"prompt": "x" * longest * CONTEXT},
        {"messages": [{"role": "user", "content": "é" * longest * 2048}]},
    ):
        asked = read_generation(body, chat="messages" in body)
        with pytest.raises(ApiError, match=f"maximum context length is {CONTEXT} tokens.* at least 40") as refused:
            prompts.read(asked)
        assert (refused.value.status, refused.value.param) == (400, next(iter(body)))
    assert slow.begun == []
    slow.go.set()
    cut = await token_ids(prompts, "x" * longest * CONTEXT, truncate_prompt_tokens=10)
    assert len(cut) == 10


async def test_prompt_of_longest_tokens_fits_to_the_last_byte(
    prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Text(FOLDER.tokenizer_json)
    token = max(range(text.vocabulary), key=lambda one: len(text.decode([one])))
    prompt = text.decode([token]) * (CONTEXT - 1)  # one more is the answer's
    assert len(prompt.encode()) == (text.longest or 0) * (CONTEXT - 1)
    asked = generation(prompt, add_special_tokens=False, max_tokens=1)
    ids = await prompts.token_ids(prompts.read(asked))
    assert ids == [token] * (CONTEXT - 1)
    assert prompts.job(asked, ids, "r").request.prompt_tokens == CONTEXT - 1
    slow = Slow(monkeypatch)
    with pytest.raises(ApiError, match=f"at least {CONTEXT} tokens in the prompt"):
        prompts.read(generation(prompt + "x", add_special_tokens=False, max_tokens=1))
    assert slow.begun == []


def with_tokenizer(**changes: Any) -> Prompts:
    """The model with these parts of its tokenizer.json replaced, none of which makes a token longer."""
    changed = json.dumps({**json.loads(FOLDER.tokenizer_json), **changes}).encode()
    config = SimulatorConfig.model_validate({**MODEL, "maxModelLen": CONTEXT})
    return Prompts(config, dataclasses.replace(FOLDER, tokenizer_json=changed))


async def test_text_that_is_short_after_its_blanks_are_stripped_is_accepted() -> None:
    strips = with_tokenizer(normalizer={"type": "Strip", "strip_left": True, "strip_right": True})
    longest = Text(FOLDER.tokenizer_json).longest or 0
    blanks = " " * (longest * CONTEXT)
    assert len(await token_ids(strips, blanks + "word", add_special_tokens=False)) == 1
    with pytest.raises(ApiError, match=f"at least {CONTEXT} tokens in the prompt"):
        strips.read(generation(blanks + "x" * (longest * CONTEXT) + blanks))
    strips.close()


async def test_size_is_no_reason_to_refuse_where_a_token_may_be_any_text() -> None:
    """Unigram without byte fallback takes a run of unknown characters for one unknown token."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
    knows = [["<unk>", 0.0], ["▁", -1.0], ["a", -1.0]]
    model = {"type": "Unigram", "unk_id": 0, "vocab": knows, "byte_fallback": False}
    parts = {"model": model, "pre_tokenizer": metaspace, "decoder": metaspace, "post_processor": None}
    unknown = with_tokenizer(**parts, added_tokens=[])
    assert await token_ids(unknown, "日" * CONTEXT * 8) == [0]
    unknown.close()


async def test_loop_is_free_while_a_long_text_is_tokenized(prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    reading = asyncio.ensure_future(token_ids(prompts, TEXT, truncate_prompt_tokens=50))
    await until(lambda: slow.begun)
    assert prompts.encoding == 1
    slow.go.set()
    assert len(await reading) == 50
    assert prompts.encoding == 0


async def test_text_of_a_disconnected_client_is_not_tokenized(
    prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    texts = [TEXT + str(number) for number in range(3)]
    first, second, third = (asyncio.ensure_future(token_ids(prompts, text)) for text in texts)
    await until(lambda: prompts.encoding == 3 and slow.begun)
    second.cancel()
    await asyncio.wait([second])
    slow.go.set()
    for one in (first, third):
        assert len(await one) > CONTEXT
    assert slow.begun == [texts[0], texts[2]]


class Runner:
    """What a completion reads of an engine before it submits."""

    draining = False

    def __len__(self) -> int:
        return 0


class Client:
    """One request of a client, and the response that it gets."""

    def __init__(self, **asked: Any) -> None:
        self.sent: list[Any] = []
        self.left = asyncio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}]

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def ask(self, completions: Completions) -> asyncio.Future[None]:
        return asyncio.ensure_future(completions({"headers": []}, self.receive, self.send))


def serving(runner: Runner, prompts: Prompts, most: int = 2, *, chat: bool = False) -> Completions:
    return Completions(runner, prompts, chat=chat, max_in_flight=most, max_body_bytes=10**6)  # type: ignore[arg-type]


async def test_waiting_texts_count_as_requests_in_flight(prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    completions = serving(Runner(), prompts)
    clients = [Client(prompt=TEXT) for _ in range(3)]
    waiting = [client.ask(completions) for client in clients[:2]]
    await until(lambda: prompts.encoding == 2)
    await clients[2].ask(completions)
    assert clients[2].sent[0]["status"] == 503
    slow.go.set()
    await asyncio.gather(*waiting)
    assert [client.sent[0]["status"] for client in clients[:2]] == [400, 400]


async def test_client_that_disconnects_while_its_text_waits_gets_nothing(
    prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    completions = serving(Runner(), prompts)
    stays, leaves = Client(prompt=TEXT), Client(prompt=TEXT)
    staying = stays.ask(completions)
    await until(lambda: slow.begun)
    leaving = leaves.ask(completions)
    await until(lambda: prompts.encoding == 2)
    leaves.left.set()
    await leaving
    assert leaves.sent == []
    await until(lambda: prompts.encoding == 1)
    slow.go.set()
    await staying
    assert len(slow.begun) == 1


async def test_short_body_that_renders_to_a_long_text_is_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for _ in range(9000) %}{{ messages[0].content }}{% endfor %}"
    config = SimulatorConfig.model_validate({**MODEL, "maxModelLen": CONTEXT})
    prompts = Prompts(config, dataclasses.replace(FOLDER, templates={"default": template}))
    slow = Slow(monkeypatch)
    client = Client(messages=[{"role": "user", "content": "ab"}])
    asking = client.ask(serving(Runner(), prompts, chat=True))
    await until(lambda: slow.begun)
    client.left.set()
    await asking
    assert client.sent == []
    slow.go.set()
    prompts.close()


async def test_draining_engine_takes_no_waiting_text(prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, runner, client = Slow(monkeypatch), Runner(), Client(prompt="a " * LONG)
    prompts.max_model_len = 10**6
    asking = client.ask(serving(runner, prompts))
    await until(lambda: slow.begun)
    runner.draining = True
    slow.go.set()
    await asking
    assert client.sent[0]["status"] == 503
