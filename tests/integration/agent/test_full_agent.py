"""An agent whose share of the directory is smaller than its engine's cache: routers know the entries that are used
repeatedly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.agents import BOS, ask, running, settings, until

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.held_chunks import ENTRY_BYTES, SERVER_BYTES
from plumage.directory.server.local_server import LocalServer
from plumage.hashing.chunks import chain, seed
from plumage.membership import Member, pack_members
from plumage_engine.agent.directory import memory_share
from plumage_engine.agent.directory import memory_share as shares
from plumage_engine.agent.http.stats import agent_stats

pytestmark = pytest.mark.redis

ROOM = 40  # chunks


def prose(number: int, words: int = 500) -> str:
    rng = random.Random(number)
    return "".join(rng.choice(("the ", "cache ", "holds ", "a ", "prefix, ")) for _ in range(words))


async def test_full_index_keeps_reused_prefixes(
    directory: LocalServer, make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_share, "RANKING_INTERVAL", 0.05)
    engine, shared = make_engine(device={"timeScale": 0.05}), prose(1, words=600)
    chunks = chain((BOS + shared).encode(), seed("tiny"))
    once = [prose(number) for number in range(100, 130)]
    async with (
        DirectorySync(directory.url, pool="full", mirror=Mirror(10_000), poll_seconds=0.05) as router,
        running(settings(directory, "full", engine, maxChunks=ROOM)) as agent,
    ):
        router.set_replicas({"chat-0": 0})

        def known() -> int:
            return router.mirror.match(chunks).get(0, (0, 0))[0]

        await until(lambda: agent.watch.ready, partial(agent_stats, agent))
        for prompt in once[:12]:
            await ask(engine, prompt)
        await until(lambda: agent.writer.held.full, partial(agent_stats, agent))
        for tail in range(3):
            await ask(engine, f"{shared}{tail} {prose(tail, words=80)}")
        assert 8 < len(chunks) < ROOM
        await until(lambda: known() >= len(chunks) - 1, lambda: (known(), len(chunks), agent_stats(agent)))
        for prompt in once[12:]:
            await ask(engine, prompt)
        await until(lambda: agent.publisher.index.chunks > 6 * ROOM, partial(agent_stats, agent))
        await until(
            lambda: router.view("chat-0").chunks == agent.writer.held.count == ROOM, partial(agent_stats, agent)
        )
        assert known() >= len(chunks) - 1
        assert agent_stats(agent)["chunksLeftOut"] > 5 * ROOM


def write_members(path: Path, count: int) -> None:
    there = [Member(f"chat-{number}", "http://127.0.0.1:1") for number in range(count)]
    path.write_text(json.dumps(pack_members("grown", there)))


async def test_directory_share_follows_pool_size(
    directory: LocalServer, make_engine: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "FILE_INTERVAL", 0.05)
    members = tmp_path / "membership.json"
    write_members(members, 1)
    memory = SERVER_BYTES + ROOM * ENTRY_BYTES * 4 // 3 + 1
    share = {"memory": memory, "membersFile": str(members)}
    engine = make_engine(device={"timeScale": 0.05})
    async with running(settings(directory, "grown", engine, share=share)) as agent:
        await until(lambda: agent.watch.ready, partial(agent_stats, agent))
        for number in range(12):
            await ask(engine, prose(number))
        await until(lambda: agent.writer.held.full and agent.writer.held.count == ROOM, partial(agent_stats, agent))
        write_members(members, 4)
        await until(lambda: agent.writer.held.count == ROOM // 4, partial(agent_stats, agent))
        write_members(members, 2)
        await until(lambda: agent.writer.held.count == ROOM // 2, partial(agent_stats, agent))
