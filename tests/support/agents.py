"""One agent in the test's own event loop, beside a simulated engine in a process, with a real directory server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from plumage.directory.server.local_server import LocalServer
from plumage.models import resolve
from plumage.rendering import ModelFolder
from plumage.settings.agent_config import AgentConfig
from plumage_engine.agent.__main__ import make_server
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.access import Access
from plumage_engine.agent.http.routes import make_app
from plumage_engine.agent.tokenizer import read_tokenizer

__all__ = ["BOS", "ask", "running", "served", "settings", "until"]

BOS = ModelFolder.load(resolve("builtin://tiny-chat")).around[0]
TEXT = read_tokenizer("builtin://tiny-chat")


def settings(directory: LocalServer, pool: str, engine: Any, **changes: Any) -> AgentConfig:
    """Settings of an agent with short intervals of look-ups and reports."""
    base = {
        "pool": pool, "replica": "chat-0", "model": "tiny", "modelFolder": "builtin://tiny-chat",
        "engineUrl": engine.url, "eventsEndpoint": engine.events, "replayEndpoint": engine.replay,
        "directoryUrl": directory.url, "listen": {"port": 0}, "heartbeatSeconds": 0.2, "loadSeconds": 0.05,
    }  # fmt: skip
    return AgentConfig.model_validate({**base, **changes})


@asynccontextmanager
async def running(config: AgentConfig, file: Path | None = None) -> AsyncIterator[Agent]:
    agent = Agent(config, TEXT, random.Random(1), file)
    agent.start()
    try:
        yield agent
    finally:
        await agent.close()


@asynccontextmanager
async def served(agent: Agent, port: int) -> AsyncIterator[str]:
    """Serves the agent's own HTTP API, as its process does."""
    server = make_server(make_app(agent, Access.of(agent.config)), "127.0.0.1", port)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
        await task


async def ask(engine: Any, prompt: str, **fields: Any) -> dict[str, Any]:
    """Requests a completion and returns its `usage`."""
    usage: dict[str, Any] = await asyncio.to_thread(engine.ask, prompt, **fields)
    return usage


async def until(condition: Callable[[], bool], what: Callable[[], object] = str) -> None:
    """Waits until the condition is true. `what` makes the message of the failure."""
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"did not happen within 40 s: {what()}")
