"""One agent beside real vLLM, with and without the plugin. The directory has what the engine caches, and a router's
prediction equals the cached tokens that vLLM then finds."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import pytest
from support.agents import until
from tests.vllm.fleet.conftest import Served

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.schema import State
from plumage.directory.server.local_server import LocalServer
from plumage.hashing.chunks import chain, seed
from plumage.rendering import ChatRenderer, ModelFolder
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.stats import agent_stats
from plumage_engine.agent.tokenizer import read_tokenizer
from plumage_engine.kv_events import decode_snapshot

pytestmark = pytest.mark.redis

CHUNK_TOKENS = 256  # tokens of a model with a token for each byte
BLOCK = 32


class Fleet:
    """An engine, its agent, and a router's view of them."""

    def __init__(self, engine: Served, agent: Agent, sync: DirectorySync) -> None:
        self.agent = agent
        self.sync = sync
        self._renderer = ChatRenderer.from_folder(ModelFolder.load(engine.model), clock=datetime.now)
        self.http = httpx.AsyncClient(base_url=engine.url, timeout=120, headers=engine.headers)
        self.cached = 0

    async def ask(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """(predicted − found cached tokens, the answer), once the router has received all earlier events."""
        chat = path.endswith("chat/completions")
        rendered = self._renderer.render_chat(body) if chat else self._renderer.render_completion(body["prompt"])
        _, predicted = self.sync.mirror.match(chain(rendered, seed("tiny"))).get(0, (0, 0))
        reply = (await self.http.post(path, json={"model": "tiny", "temperature": 0, **body})).raise_for_status().json()
        actual = (reply["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        self.cached += actual
        choice = reply["choices"][0]
        await self.settled()
        return predicted - actual, choice["message"]["content"] if chat else choice["text"]

    async def settled(self) -> None:
        """vLLM publishes events with the next step. Waits for a moment without changes, and until the router has what
        the agent has."""
        last = -2
        while last != self.agent.stream.last:
            last = self.agent.stream.last
            await asyncio.sleep(0.3)
        heard, said = self.sync._replicas["chat-0"].reader, self.agent.writer
        await until(lambda: (heard.epoch, heard.count, heard.digest) == (said.epoch, said.held.count, said.held.digest))


def prose(number: int, words: int) -> str:
    rng = random.Random(number)
    return "".join(rng.choice(("the ", "cache ", "holds ", "a ", "prefix, ", "é🙂 ", "日本 ")) for _ in range(words))


def held(agent: Agent) -> set[Any]:
    """Blocks that the agent considers cached, in any tier."""
    return {key for key, block in agent.publisher.index._blocks.items() if block.copies}


async def talk(fleet: Fleet) -> list[int]:
    """Multi-turn chats with one system prompt, and raw completions: more than 400 blocks have room for."""
    errors, chats = [], []
    for number in range(5):
        chat = [{"role": "system", "content": prose(0, 150)}, {"role": "user", "content": prose(10 + number, 30)}]
        for turn in range(3):
            error, answer = await fleet.ask("/v1/chat/completions", {"messages": chat, "max_tokens": 24})
            errors.append(error)
            follow = {"role": "user", "content": prose(100 + number * 10 + turn, 20) + " \u00a0<|im_end|>"}
            chat = [*chat, {"role": "assistant", "content": answer}, follow]
        chats.append(chat)
    # The last six evict the chats.
    for number, words in ((20, 300), (21, 300), (20, 300), *((other, 500) for other in range(30, 36))):
        error, _ = await fleet.ask("/v1/completions", {"prompt": prose(number, words), "max_tokens": 2})
        errors.append(error)
    errors.append((await fleet.ask("/v1/chat/completions", {"messages": chats[0], "max_tokens": 2}))[0])
    return errors


@pytest.mark.parametrize("kind", ["stock", "with_plugin"])
async def test_directory_lists_blocks_of_vllm(kind: str, request: pytest.FixtureRequest) -> None:
    engine: Served = await asyncio.to_thread(request.getfixturevalue, kind)
    text = read_tokenizer(str(engine.model))
    with LocalServer() as directory:
        agent = Agent(engine.agent(directory, kind), text, random.Random(1))
        agent.start()
        try:
            async with DirectorySync(directory.url, pool=kind, mirror=Mirror(10_000), poll_seconds=0.05) as sync:
                sync.set_replicas({"chat-0": 0})
                await until(lambda: sync.view("chat-0").state is State.READY, partial(agent_stats, agent))
                fleet = Fleet(engine, agent, sync)
                async with fleet.http:
                    errors = await talk(fleet)
                assert fleet.cached > 10_000
                assert max(map(abs, errors)) <= CHUNK_TOKENS + BLOCK, errors
                assert agent.stream.counters.malformed == agent.publisher.index.counters.stray_removals == 0
                if engine.keys:
                    await snapshots_agree(directory, engine, agent)
                    await a_reset_empties_the_directory(engine, agent, sync)
        finally:
            await agent.close()


async def snapshots_agree(directory: LocalServer, engine: Served, agent: Agent) -> None:
    """The engine's snapshot equals what its agent indexed from events. So a late agent can start from it, without
    replay."""
    with engine.admin() as http:
        answer = await asyncio.to_thread(http.get, "/v1/plumage/snapshot")
    snapshot = decode_snapshot(answer.raise_for_status().content)
    assert snapshot.seq == agent.stream.last
    assert {row.block_hash for row in snapshot.blocks} == held(agent)
    assert len(snapshot.blocks) > 300
    text = read_tokenizer(str(engine.model))
    late = Agent(engine.agent(directory, "late", replayEndpoint=None), text, random.Random(2))
    late.start()
    try:
        await until(lambda: late.stream.counters.snapshots == 1, partial(agent_stats, late))
        assert held(late) == held(agent)
        assert late.writer.held.count == agent.writer.held.count
    finally:
        await late.close()


async def a_reset_empties_the_directory(engine: Served, agent: Agent, sync: DirectorySync) -> None:
    """At once: the engine is idle, so no step follows."""
    steps = (await asyncio.to_thread(engine.stats))["secondsSinceStep"]
    await asyncio.to_thread(engine.reset)
    await until(lambda: not held(agent) and not agent.writer.held.count, partial(agent_stats, agent))
    await until(lambda: not sync._replicas["chat-0"].reader.count)
    assert (await asyncio.to_thread(engine.stats))["secondsSinceStep"] > steps
