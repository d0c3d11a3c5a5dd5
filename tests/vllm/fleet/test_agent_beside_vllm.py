"""One agent beside real vLLM, without the plugin and with it: the directory holds what the engine holds, and what a
router predicts from it is what vLLM then finds cached."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.agents import until

from plumage.directory.mirror import Mirror
from plumage.directory.schema import State
from plumage.directory.server import LocalServer
from plumage.directory.sync import DirectorySync
from plumage.hashing.chunks import chain, seed
from plumage.rendering import ChatRenderer, ModelFolder
from plumage_bench.vllm_server import Server
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.config import AgentConfig
from plumage_engine.agent.tokenizer import read_tokenizer
from plumage_engine.agent.wire import decode_snapshot

pytestmark = pytest.mark.redis

CHUNK_TOKENS = 256  # of a model with a token a byte
BLOCK = 32
PLUGIN = {"PLUMAGE_VLLM": "{}", "VLLM_PLUGINS": "plumage"}


def arguments(folder: Path) -> tuple[str, ...]:
    return (
        f'--kv-events-config={{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "ipc://{folder}/events",'
        f' "replay_endpoint": "ipc://{folder}/replay"}}',
        "--enable-prompt-tokens-details",
        "--num-gpu-blocks-override=400",
        "--max-model-len=4096",
    )


def config(directory: LocalServer, server: Server, folder: Path, model: Path, **changes: Any) -> AgentConfig:
    base = {
        "pool": folder.name, "replica": "chat-0", "model": "tiny", "modelFolder": str(model), "engineUrl": server.url,
        "eventsEndpoint": f"ipc://{folder}/events", "replayEndpoint": f"ipc://{folder}/replay",
        "directoryUrl": directory.url, "listen": {"port": 0}, "heartbeatSeconds": 0.2, "loadSeconds": 0.1,
    }  # fmt: skip
    return AgentConfig.model_validate({**base, **changes})


class Fleet:
    """An engine, its agent, and what a router makes of them."""

    def __init__(self, server: Server, agent: Agent, sync: DirectorySync, model: Path) -> None:
        self.agent = agent
        self.sync = sync
        self._renderer = ChatRenderer.from_folder(ModelFolder.load(model), clock=datetime.now)
        self.http = httpx.AsyncClient(base_url=server.url, timeout=120)
        self.cached = 0

    async def ask(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """(predicted − found cached tokens, the answer), once the router has heard of all that went before."""
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
        """vLLM publishes with the step after; a quiet moment, and then the router has what the agent has."""
        last = -2
        while last != self.agent.stream.last:
            last = self.agent.stream.last
            await asyncio.sleep(0.3)
        heard, said = self.sync._replicas["chat-0"].follower, self.agent.writer
        await until(lambda: (heard.epoch, heard.count, heard.digest) == (said.epoch, said.count, said.digest))


def prose(number: int, words: int) -> str:
    rng = random.Random(number)
    return "".join(rng.choice(("the ", "cache ", "holds ", "a ", "prefix, ", "é🙂 ", "日本 ")) for _ in range(words))


def held(agent: Agent) -> Counter[Any]:
    """Blocks that the agent believes to be cached."""
    return Counter(key for key, block in agent.holdings.index._blocks.items() if block.copies)


async def talk(fleet: Fleet) -> list[int]:
    """Multi-turn chats over one system prompt, raw completions, more than 400 blocks hold."""
    errors, chats = [], []
    for number in range(5):
        chat = [{"role": "system", "content": prose(0, 150)}, {"role": "user", "content": prose(10 + number, 30)}]
        for turn in range(3):
            error, answer = await fleet.ask("/v1/chat/completions", {"messages": chat, "max_tokens": 24})
            errors.append(error)
            follow = {"role": "user", "content": prose(100 + number * 10 + turn, 20) + " \u00a0<|im_end|>"}
            chat = [*chat, {"role": "assistant", "content": answer}, follow]
        chats.append(chat)
    # The last six push the chats out.
    for number, words in ((20, 300), (21, 300), (20, 300), *((other, 500) for other in range(30, 36))):
        error, _ = await fleet.ask("/v1/completions", {"prompt": prose(number, words), "max_tokens": 2})
        errors.append(error)
    errors.append((await fleet.ask("/v1/chat/completions", {"messages": chats[0], "max_tokens": 2}))[0])
    return errors


@pytest.mark.parametrize("plugin", [False, True], ids=["stock", "plugin"])
async def test_the_directory_holds_what_vllm_holds(
    plugin: bool, start_server: Callable[..., Server], tiny_model: Path, tmp_path: Path
) -> None:
    server = await asyncio.to_thread(start_server, *arguments(tmp_path), environment=PLUGIN if plugin else {})
    text = read_tokenizer(str(tiny_model))
    with LocalServer() as directory:
        agent = Agent(config(directory, server, tmp_path, tiny_model), text, random.Random(1))
        agent.start()
        try:
            async with DirectorySync(
                directory.url, pool=tmp_path.name, mirror=Mirror(10_000), poll_seconds=0.05
            ) as sync:
                sync.set_replicas({"chat-0": 0})
                await until(lambda: sync.view("chat-0").state is State.READY, agent.stats)
                fleet = Fleet(server, agent, sync, tiny_model)
                async with fleet.http:
                    errors = await talk(fleet)
                assert fleet.cached > 10_000
                assert max(map(abs, errors)) <= CHUNK_TOKENS + BLOCK, errors
                assert agent.stream.counters.malformed == agent.holdings.index.counters.stray_removals == 0
                if plugin:
                    await snapshots_agree(directory, server, agent, tmp_path, tiny_model)
        finally:
            await agent.close()


async def snapshots_agree(directory: LocalServer, server: Server, agent: Agent, folder: Path, model: Path) -> None:
    """What the engine tells at once is what its agent followed; an agent that comes late, without replay, knows it."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        snapshot = decode_snapshot((await http.get("/v1/plumage/snapshot")).raise_for_status().content)
    assert snapshot.seq == agent.stream.last
    assert Counter(row.block_hash for row in snapshot.blocks) == held(agent)
    assert len(snapshot.blocks) > 300
    changes = {"pool": "late", "replayEndpoint": None}
    late = Agent(config(directory, server, folder, model, **changes), read_tokenizer(str(model)), random.Random(2))
    late.start()
    try:
        await until(lambda: late.stream.counters.snapshots == 1, late.stats)
        assert held(late) == held(agent)
        assert late.writer.count == agent.writer.count
    finally:
        await late.close()
