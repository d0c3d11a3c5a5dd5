"""The agent as its own process, also beside an engine without Plumage's routes, such as a stock vLLM."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.agents import until
from support.ports import free_port
from tests.integration.agent.conftest import answers, settings_of

from plumage.directory.client.connection import connect
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.schema import Keys, State
from plumage.hashing.chunks import chain, seed
from plumage.models import resolve
from plumage_engine.agent.tokenizer import read_tokenizer

pytestmark = pytest.mark.redis


def prompt_event(text: str, key: int) -> dict[str, Any]:
    """One block with a whole prompt."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve("builtin://tiny-chat") / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    fields = {"parent_block_hash": None, "block_size": len(ids), "medium": "GPU", "lora_id": None, "lora_name": None}
    return {"type": "BlockStored", "block_hashes": [key], "token_ids": ids, **fields}


async def test_agent_indexes_stock_engine_until_sigterm(directory, stock, start_publisher, start_agent) -> None:
    publisher, port = start_publisher(), free_port()
    text = "cached by a stock engine, known by its events alone; " * 20
    publisher.publish(prompt_event(text, 1))
    agent = start_agent(**settings_of(directory, "stock", stock, publisher, port))
    await answers(f"http://127.0.0.1:{port}/readyz")
    mirror = Mirror(1000)
    async with DirectorySync(directory.url, pool="stock", mirror=mirror, poll_seconds=0.05) as sync:
        sync.set_replicas({"vllm-0": 0})
        expected = chain(text.encode(), seed("tiny"))
        await until(lambda: mirror.match(expected).get(0, (0, 0))[0] == len(expected))
        stock.running = 1
        await until(lambda: sync.view("vllm-0").state is State.STALLED)
        stock.working = True
        await until(lambda: sync.view("vllm-0").state is State.READY)
        publisher.publish({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"})
        await until(lambda: not mirror.match(expected))
    code, output = await asyncio.to_thread(agent.end)
    assert code == 0, output
    assert "Traceback" not in output
    client = connect(directory.url)
    assert await client.exists(Keys("stock", "vllm-0").beat) == 0
    await client.aclose()


async def test_saved_table_survives_agent_restart(
    directory, stock, start_publisher, start_agent, tmp_path: Path
) -> None:
    """The replay no longer contains the first prompt, and a stock engine has no snapshot."""
    publisher, port = start_publisher(kept=2), free_port()
    text = "known only to the agent that saw it being cached; " * 20
    settings = settings_of(directory, "table", stock, publisher, port, stateFile=str(tmp_path / "table"))
    publisher.publish(prompt_event(text, 1))
    mirror, expected = Mirror(1000), chain(text.encode(), seed("tiny"))
    async with DirectorySync(directory.url, pool="table", mirror=mirror, poll_seconds=0.05) as sync:
        sync.set_replicas({"vllm-0": 0})
        first = start_agent(**settings)
        await until(lambda: mirror.match(expected).get(0, (0, 0))[0] == len(expected))
        code, output = await asyncio.to_thread(first.end)
        assert code == 0, output
        epoch = sync.view("vllm-0").epoch
        publisher.publish(prompt_event("something else altogether; " * 20, 2))
        start_agent(**settings)
        await until(lambda: sync.view("vllm-0").epoch not in ("", epoch))
        await until(lambda: mirror.match(expected).get(0, (0, 0))[0] == len(expected))


async def test_second_agent_of_replica_takes_over(directory, stock, start_publisher, start_agent) -> None:
    publisher, ports = start_publisher(), [free_port(), free_port()]
    first = start_agent(**settings_of(directory, "twice", stock, publisher, ports[0]))
    await answers(f"http://127.0.0.1:{ports[0]}/readyz")
    start_agent(**settings_of(directory, "twice", stock, publisher, ports[1]))
    await answers(f"http://127.0.0.1:{ports[1]}/readyz")
    assert await asyncio.to_thread(first.process.wait, 60) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heartbeatSecond": 1}, "heartbeatSecond"),
        ({"modelFolder": "builtin://no-such"}, "builtin://tiny-chat"),
        ({"listen": {"host": "0.0.0.0", "port": 1}}, "tokenFile"),
        ({"tokenFile": "/nonexistent/token"}, "/nonexistent/token"),
        ({"directoryUrl": "http://x"}, "unix:///path"),
        ({"eventsEndpoint": "nonsense"}, "eventsEndpoint"),
    ],
    ids=["typo", "model", "open", "token", "directory", "events"],
)
def test_invalid_configuration_names_remedy(
    directory, stock, start_publisher, start_agent, changes: dict[str, Any], says: str
) -> None:
    agent = start_agent(**settings_of(directory, "bad", stock, start_publisher(), 0, **changes))
    code, output = agent.ended()
    assert code == 2
    assert says in output
    assert "Traceback" not in output


async def test_settings_of_newer_operator_are_accepted(directory, stock, start_publisher, start_agent) -> None:
    port = free_port()
    newer = {"writtenBy": "operator", "novelty": 1, "warmup": {"enabled": False, "novelty": 1}}
    agent = start_agent(**settings_of(directory, "newer", stock, start_publisher(), port, **newer))
    await answers(f"http://127.0.0.1:{port}/readyz")
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    code, output = await asyncio.to_thread(agent.end)
    assert "plumage_agent_config_ignored_fields 2" in page.splitlines()
    assert code == 0, output
    (said,) = [line for line in output.splitlines() if "novelty" in line]
    assert said.startswith("WARNING")
    assert said.endswith(": warmup.novelty, novelty")


def test_used_port_is_named(directory, stock, start_publisher, start_agent) -> None:
    used = int(stock.url.rpartition(":")[2])
    agent = start_agent(**settings_of(directory, "port", stock, start_publisher(), used))
    code, output = agent.ended()
    assert code == 2
    assert f"127.0.0.1:{used}" in output


def test_builtin_tokenizer_is_lossless() -> None:
    assert read_tokenizer("builtin://tiny-chat").lossy == ()
