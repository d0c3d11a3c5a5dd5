"""examples/vllm.yaml as it is: two real vLLM engines, their agents, a directory and a router, through a real client;
then a third engine beside them, and one alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from support.pool import Pool, gone, leftovers, load, lost, prompts, whole

from plumage_cli.local.vllm import PYTHON

pytestmark = [pytest.mark.redis, pytest.mark.timeout(1500)]

MODEL = "tiny-llama"
UP_SECONDS = 600.0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runtime = Path(tempfile.mkdtemp(prefix="plm-"))  # short: Unix sockets lie in it
    # A stream that a busy machine draws out beyond the drain's time is cut, rightly: not what is asked here.
    made = Pool(runtime, "vllm.yaml", rollout__drainTimeoutSeconds=300)
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
    """Its output is a pipe that must not fill."""
    assert pool.process.stdout is not None
    for line in pool.process.stdout:
        pool.output += line


@asynccontextmanager
async def client(pool: Pool) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    base = f"{pool.url}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="any", max_retries=0, timeout=120, http_client=http) as made:
        yield made


async def chat(
    user: openai.AsyncOpenAI, messages: list[Any], tokens: int, *, whole: bool = False
) -> tuple[str, int, str | None]:
    """A streamed answer: (text, cached prompt tokens, why it ended). whole: all the tokens, whatever the model says."""
    stream = await user.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": whole},
    )
    text, cached, ended = "", 0, None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            ended = choice.finish_reason or ended
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    return text, cached, ended


async def test_a_fleet_of_real_vllm(pool: Pool) -> None:
    await pool.until(whole(2), UP_SECONDS)
    async with client(pool) as user:
        assert [model.id for model in (await user.models.list()).data] == [MODEL]
        await nothing_of_the_engines_own_passes(user)
        await conversations_stay_where_they_were(pool, user)
    await no_request_is_lost_when_an_engine_is_killed(pool)
    async with client(pool) as user:
        await a_third_engine_has_what_is_hot_before_it_serves(pool, user)
        await a_drain_lets_streams_end(pool, user)


async def conversations_stay_where_they_were(pool: Pool, user: openai.AsyncOpenAI) -> None:
    """Of several conversations, begun side by side, each goes on where its prefix is."""

    async def first(number: int) -> list[Any]:
        messages: list[Any] = [{"role": "user", "content": f"{number} " + "once upon a time " * 60}]
        answer, _, ended = await chat(user, messages, 60, whole=True)
        assert ended == "length"
        return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]

    begun = await asyncio.gather(*(first(number) for number in range(12)))
    await asyncio.sleep(2.0)  # events come with the step after, and the router looks now and then
    for messages in begun:
        _, cached, _ = await chat(user, messages, 8)
        assert cached > 900, f"of more than 1,000 tokens {cached} were found"
    both = await pool.until(lambda view: all(replica["hitTokens"] for replica in view["traffic"]["replicas"]), 20.0)
    assert len(both["traffic"]["replicas"]) == 2


async def nothing_of_the_engines_own_passes(user: openai.AsyncOpenAI) -> None:
    """What would reach into vLLM is refused before any engine hears of it."""
    for field in ("vllm_xargs", "kv_transfer_params"):
        given = {field: {"kv_cache_report_mode": "full", "do_remote_prefill": True}}
        with pytest.raises(openai.BadRequestError, match=field):
            await user.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=1, extra_body=given
            )


async def no_request_is_lost_when_an_engine_is_killed(pool: Pool) -> None:
    victim = (await asyncio.to_thread(pool.view))["replicas"][0]
    family = {str(one.pid): one.pid for one in psutil.Process(victim["engine"]["pid"]).children(recursive=True)}
    assert len(family) >= 2, "a server and its engine core"

    def kill() -> None:
        os.kill(victim["engine"]["pid"], signal.SIGKILL)

    outcomes = await load(pool, prompts(30, seed=1, words=150), kill, model=MODEL)
    assert len(outcomes) == 30
    assert lost(outcomes) == []
    assert gone(family) == {}, "nothing of the killed engine is left"
    view = await pool.until(whole(2), UP_SECONDS)
    assert view["replicas"][0]["engine"]["restarts"] == 1


async def a_third_engine_has_what_is_hot_before_it_serves(pool: Pool, user: openai.AsyncOpenAI) -> None:
    """Its first hot prompt among them, since every one of them finds the prefix cached, whoever answers it."""

    async def ask(number: int) -> int:
        messages = [{"role": "system", "content": "be brief " * 150}, {"role": "user", "content": f"{number}?"}]
        _, cached, _ = await chat(user, messages, 40, whole=True)
        return cached

    for number in range(6):
        await ask(number)
    scaled = await asyncio.to_thread(pool.run, "scale", "3", seconds=UP_SECONDS)
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
    await pool.until(whole(3), UP_SECONDS)
    found = await asyncio.gather(*(ask(number) for number in range(10, 28)))
    assert min(found) > 1000, found
    view = await pool.until(lambda view: third(view)["finished"], 20.0)
    assert third(view)["hitTokens"] > 1000


def third(view: dict[str, Any]) -> dict[str, Any]:
    """What the router tells of it."""
    told: dict[str, Any] = next(one for one in view["traffic"]["replicas"] if one["id"] == "chat-2")
    return told


async def a_drain_lets_streams_end(pool: Pool, user: openai.AsyncOpenAI) -> None:
    talks = [
        asyncio.create_task(chat(user, [{"role": "user", "content": f"story {number} " * 20}], 150, whole=True))
        for number in range(6)
    ]
    await asyncio.sleep(1.0)
    scaled = asyncio.create_task(asyncio.to_thread(pool.run, "scale", "1"))
    assert [ended for _, _, ended in await asyncio.gather(*talks)] == ["length"] * len(talks)
    done = await scaled
    assert done.returncode == 0, done.stdout + done.stderr
    view = await pool.until(whole(1), 60.0)
    _, _, ended = await chat(user, [{"role": "user", "content": "still there?"}], 4)
    assert ended in ("length", "stop")
    assert len(view["replicas"]) == 1
