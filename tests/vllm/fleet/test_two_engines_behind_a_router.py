"""examples/vllm.yaml, with tracing: two real vLLM engines, their agents, a directory, a router and a client. Then a
third engine is added, and two are removed. Also `plumage up --model`: one engine without a manifest.

It prints its figures and keeps none: pytest -s. docs/evidence.md lists the command.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from support.conditions import until as within
from support.otlp import Spans, received_spans
from support.pool import Pool, busiest, gone, leftovers, load, lost, prompts, status, whole

from plumage_cli.local.control.client import ask
from plumage_cli.local.processes.vllm_interpreter import PYTHON

pytestmark = [pytest.mark.redis, pytest.mark.timeout(1500)]

MODEL = "tiny-llama"
UP_SECONDS = 600.0
MOST_STORIES = 20
STREAM_TOKENS = 400  # tokens of a stream that runs while the pool changes its size: 1.5 s on an idle machine


@pytest.fixture
def spans() -> Iterator[Spans]:
    with received_spans() as received:
        yield received


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> Iterator[Pool]:
    changes = {
        "rollout__drainTimeoutSeconds": 300,  # a stream that takes longer on a busy machine is cut: not tested here
        "tracing__endpoint": spans.endpoint,
        "tracing__samplingRatePerMillion": 0,  # only what a client traces
    }
    monkeypatch.setenv("FORKED_CORE", "1")  # read by tests/support/fewer_collections
    with _up(monkeypatch, "vllm.yaml", **changes) as made:
        yield made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    with _up(monkeypatch, model=MODEL) as made:
        yield made


@contextmanager
def _up(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **named: Any) -> Iterator[Pool]:
    """A Pool of real vLLM. It is ended by SIGINT unless it has ended, and then nothing of it may be left."""
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runtime = Path(tempfile.mkdtemp(prefix="plm-"))  # a short path, for Unix sockets
    made = Pool(runtime, *arguments, **named)
    output = threading.Thread(target=_read, args=(made,), daemon=True)
    output.start()
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGINT)
    made.process.wait(120)
    output.join(10)
    assert made.process.stdout is not None
    made.process.stdout.close()
    left = leftovers(runtime, seconds=20.0)
    shutil.rmtree(runtime, ignore_errors=True)
    assert made.process.returncode == 0, made.output
    assert left == []


def _read(pool: Pool) -> None:
    """Reads its output, so that the pipe does not fill."""
    assert pool.process.stdout is not None
    for line in pool.process.stdout:
        pool.output += line


@asynccontextmanager
async def client(pool: Pool) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    base = f"{pool.url}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="any", max_retries=0, timeout=120, http_client=http) as made:
        yield made


@dataclass(slots=True)
class Answer:
    """cached: prompt tokens. tokens: of the answer. ended: the reason."""

    text: str = ""
    cached: int = 0
    tokens: int = 0
    ended: str | None = None


async def chat(user: openai.AsyncOpenAI, messages: list[Any], tokens: int, *, whole: bool = False) -> Answer:
    """A streamed answer. whole: all the tokens, without the model's own end."""
    stream = await user.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": whole},
    )
    answer = Answer()
    async for chunk in stream:
        for choice in chunk.choices:
            answer.text += choice.delta.content or ""
            answer.ended = choice.finish_reason or answer.ended
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            answer.tokens, answer.cached = chunk.usage.completion_tokens, (details and details.cached_tokens) or 0
    return answer


def family(process: int) -> dict[str, int]:
    """Its child processes and theirs. Engine cores change their names, so `leftovers` does not see them."""
    return {str(one.pid): one.pid for one in psutil.Process(process).children(recursive=True)}


async def test_two_vllm_engines_serve_behind_router(pool: Pool, spans: Spans) -> None:
    await pool.until(whole(2), UP_SECONDS)
    async with client(pool) as user:
        assert [model.id for model in (await user.models.list()).data] == [MODEL]
        await nothing_of_the_engines_own_passes(user)
        await tokens_are_counted_by_an_engine(user)
        await conversations_stay_where_they_were(pool, user)
        await a_trace_leads_from_client_to_engine(user, spans)
    await no_request_is_lost_when_an_engine_is_killed(pool)
    async with client(pool) as user:
        await a_third_engine_has_hot_prefixes_before_it_serves(pool, user)
        await a_drain_lets_streams_end(pool, user)


async def test_model_name_starts_one_engine(alone: Pool) -> None:
    view = await alone.until(whole(1), UP_SECONDS)
    started = family(alone.process.pid)
    assert view["replicas"][0]["engine"]["pid"] in started.values()
    async with client(alone) as user:
        assert [model.id for model in (await user.models.list()).data] == [MODEL]
        answer = await chat(user, [{"role": "user", "content": "Who is there?"}], 20, whole=True)
    assert (answer.ended, answer.tokens) == ("length", 20)
    assert answer.text
    await its_plugin_answers(alone, view["replicas"][0]["url"])
    alone.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(alone.process.wait, 120) == 0, alone.output
    assert gone(started) == {}
    assert not alone.folder.exists()


async def its_plugin_answers(pool: Pool, engine: str) -> None:
    """vLLM's engine core is a new interpreter here, which loads the plugin by its entry point."""
    key = {"Authorization": f"Bearer {(pool.folder / 'fleet.token').read_text().strip()}"}
    async with httpx.AsyncClient(base_url=engine, headers=key, trust_env=False) as http:
        stats = (await http.get("/v1/plumage/stats")).raise_for_status().json()
    assert {"feather", "eviction", "record"} <= set(stats["features"])
    assert all(state["on"] for state in stats["features"].values()), stats["features"]


async def conversations_stay_where_they_were(pool: Pool, user: openai.AsyncOpenAI) -> None:
    """Of several concurrent conversations, nearly each continues at the replica with its prefix."""

    async def first(number: int) -> list[Any]:
        messages: list[Any] = [{"role": "user", "content": f"{number} " + "once upon a time " * 60}]
        answer = await chat(user, messages, 60, whole=True)
        assert answer.ended == "length"
        return [*messages, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "and then?"}]

    begun = await asyncio.gather(*(first(number) for number in range(12)))
    # Events come with the next step, agents and router poll at intervals, and other tests run.
    await asyncio.sleep(6.0)
    found = [(await chat(user, messages, 8)).cached for messages in begun]
    seen = await until(pool, idle)
    stayed = [tokens for tokens in found if tokens > 900]
    # Lbgr learns a prefix's benefit from these same requests, so a few may go to a replica that it still has to try.
    assert len(stayed) >= 9, [(decision["replica"], decision["why"]) for decision in seen["decisions"][: len(begun)]]
    assert all(replica["hitTokens"] for replica in seen["replicas"]), "both serve"
    print(f"\n{len(stayed)} of {len(found)} conversations went on where they were: {min(stayed)} tokens cached or more")


async def a_trace_leads_from_client_to_engine(user: openai.AsyncOpenAI, spans: Spans) -> None:
    """The requests before it were not traced, by the engines neither."""
    trace, client_span = f"{random.getrandbits(128):032x}", f"{random.getrandbits(64):016x}"
    messages: list[Any] = [{"role": "user", "content": "Who traces this?"}]
    header = {"traceparent": f"00-{trace}-{client_span}-01"}
    answer = await user.chat.completions.create(model=MODEL, messages=messages, max_tokens=5, extra_headers=header)
    assert answer.usage is not None
    await within(lambda: spans.named("llm_request") and spans.named("POST"), pause=0.1)
    [request], [attempt], [engine] = spans.named("POST"), spans.named("chat"), spans.named("llm_request")
    assert (request.trace, request.parent) == (trace, client_span)
    assert (attempt.parent, engine.parent, engine.trace) == (request.id, attempt.id, trace)
    assert [span.service.rpartition("-")[2] for span in (request, attempt, engine)] == ["router", "router", "engine"]
    assert engine.attributes["gen_ai.usage.prompt_tokens"] == answer.usage.prompt_tokens
    assert attempt.attributes["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert len({span.id for span in spans.spans}) == len(spans.spans) == 3


async def until(pool: Pool, holds: Callable[[dict[str, Any]], object], seconds: float = 20.0) -> dict[str, Any]:
    """The router's status, once the condition is true."""
    async with asyncio.timeout(seconds):
        while not holds(seen := await asyncio.to_thread(status, pool)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return seen


def idle(seen: dict[str, Any]) -> bool:
    """All requests have ended, and are counted."""
    return not any(one["inFlight"] for one in seen["replicas"])


async def nothing_of_the_engines_own_passes(user: openai.AsyncOpenAI) -> None:
    """Requests that would reach vLLM's internals are refused before they reach an engine."""
    for field in ("vllm_xargs", "kv_transfer_params"):
        given = {field: {"kv_cache_report_mode": "full", "do_remote_prefill": True}}
        with pytest.raises(openai.BadRequestError, match=field):
            await user.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=1, extra_body=given
            )


async def tokens_are_counted_by_an_engine(user: openai.AsyncOpenAI) -> None:
    """`/tokenize` through the router counts what a completion computes; an endpoint that the model lacks is missing."""
    messages: Any = [{"role": "user", "content": "hello there"}]
    root = str(user.base_url).rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=root, headers={"authorization": f"Bearer {user.api_key}"}) as http:
        counted = (await http.post("/tokenize", json={"model": MODEL, "messages": messages})).json()
        answer = await user.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        assert answer.usage is not None
        assert counted["count"] == len(counted["tokens"]) == answer.usage.prompt_tokens
        text = (await http.post("/detokenize", json={"model": MODEL, "tokens": counted["tokens"]})).json()
        assert "hello there" in text["prompt"]
        assert (await http.post("/v1/embeddings", json={"model": MODEL, "input": "a"})).status_code == 404


async def no_request_is_lost_when_an_engine_is_killed(pool: Pool) -> None:
    """The engine is killed during requests. The router sends those without a first byte to the other engine; the
    clients repeat the others."""
    before = status(pool)["totals"]
    victim: dict[str, Any] = {}
    started: dict[str, int] = {}

    def kill() -> None:
        victim.update(busiest(pool))
        started.update(family(victim["engine"]["pid"]))
        os.kill(victim["engine"]["pid"], signal.SIGKILL)

    outcomes = await load(pool, prompts(30, seed=1, words=300), kill, model=MODEL)
    assert len(outcomes) == 30
    assert lost(outcomes) == []
    assert len(started) >= 2, "a server and its engine core"
    assert gone(started) == {}, "nothing of the killed engine is left"
    view = await pool.until(whole(2), UP_SECONDS)
    assert {one["id"]: one["engine"]["restarts"] for one in view["replicas"]}[victim["id"]] == 1
    retried = status(pool)["totals"]["retries"] - before["retries"]
    cut = sum(outcome.cut for outcome in outcomes)
    print(f"an engine killed under {len(outcomes)} requests: {retried} retried, {cut} cut and asked again, none lost")
    assert retried + cut > 0, "it had nothing to do when it was killed"


async def a_third_engine_has_hot_prefixes_before_it_serves(pool: Pool, user: openai.AsyncOpenAI) -> None:
    """It has the first hot prompt too, since every prompt that it answers finds the prefix cached. The killed engine
    gets no request for a warm-up, since it ended before the prompt became hot."""

    async def ask_hot(number: int) -> None:
        messages = [{"role": "system", "content": "be brief " * 150}, {"role": "user", "content": f"{number}?"}]
        await chat(user, messages, 40, whole=True)

    for number in range(6):
        await ask_hot(number)
    scaled = await asyncio.to_thread(pool.run, "scale", "3", seconds=UP_SECONDS)
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
    await pool.until(whole(3), UP_SECONDS)
    await asyncio.gather(*(ask_hot(number) for number in range(10, 28)))
    seen = await until(pool, idle)
    third = next(one for one in seen["replicas"] if one["id"] == "chat-2")
    print(f"of 18 hot prompts the third engine answered {third['finished']}, with {third['hitTokens']} tokens cached")
    assert third["finished"] > 0
    assert third["hitTokens"] > 1300 * third["finished"], "each found its 1,344, the first one too"


async def a_drain_lets_streams_end(pool: Pool, user: openai.AsyncOpenAI) -> None:
    """Two of three engines are removed during streams. Threads poll the router: this loop reads the streams."""
    ended = threading.Event()
    leaving: dict[str, int] = {}
    answers: list[Answer] = []

    def scale_once_two_serve() -> dict[str, Any]:
        while len(in_flight(status(pool), "Ready")) < 2 and not ended.wait(0.1):
            pass  # one of the two is removed, whichever stays
        return ask(pool.folder, {"do": "scale", "replicas": 1}, timeout=UP_SECONDS)

    def note_leaving() -> None:
        while not ended.wait(0.1):
            leaving.update(in_flight(status(pool), "Draining"))

    async def stream_stories(number: int) -> None:
        for _ in range(MOST_STORIES):  # on a busy machine a change of size takes longer than one stream
            if leaving or scaling.done():
                return
            # So long that the prefills need more than one engine, whichever was fastest so far.
            story: list[Any] = [{"role": "user", "content": f"story {number} " * 80}]
            answers.append(await chat(user, story, STREAM_TOKENS, whole=True))

    scaling = asyncio.create_task(asyncio.to_thread(scale_once_two_serve))
    noting = asyncio.create_task(asyncio.to_thread(note_leaving))
    try:
        await asyncio.gather(*(stream_stories(number) for number in range(6)))
    finally:
        ended.set()
        await asyncio.gather(noting, scaling)
    assert len(scaling.result()["replicas"]) == 1
    assert leaving, "no stream was under way on an engine that left"
    assert {(answer.ended, answer.tokens) for answer in answers} == {("length", STREAM_TOKENS)}
    print(f"a drain let {sum(leaving.values())} of {len(answers)} streams end on the engines that left: {leaving}")
    view = await pool.until(whole(1), 60.0)
    assert view["replicas"][0]["id"] not in leaving
    assert (await chat(user, [{"role": "user", "content": "still there?"}], 4)).ended in ("length", "stop")


def in_flight(seen: dict[str, Any], state: str) -> dict[str, int]:
    """Requests in flight by replica, of replicas in this state, as the router saw both at one time."""
    return {one["id"]: one["inFlight"] for one in seen["replicas"] if one["state"] == state and one["inFlight"]}
