"""More entries than the directory has room for: the server's memory stays bounded, and hot entries stay in the
directory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.following import in_step

from plumage.directory.client.tasks import end
from plumage.directory.publisher.held_chunks import capacity_within
from plumage.directory.publisher.outbox import ENTRIES_AT_ONCE
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import RECORD, Change, Tier
from plumage.directory.server.local_server import LocalServer
from plumage.membership import Member, pack_members
from plumage.settings.agent_config import ShareConfig
from plumage_engine.agent.directory import memory_share as shares

STEP = 50  # chunks of a prompt of the flood


def prompt(rng: random.Random) -> list[Change]:
    return [Change(rng.getrandbits(64), Tier.GPU, 64 * depth) for depth in range(1, STEP + 1)]


async def flood(writers: list[DirectoryWriter], chunks: int, rng: random.Random) -> None:
    """Equally many entries to each writer, at a pace that the server can follow."""
    for number in range(chunks // STEP):
        for writer in writers:
            writer.publish(prompt(rng))
        if number % 40 == 0:
            await asyncio.sleep(0.002)


async def test_routers_keep_hot_prefixes_when_a_replica_holds_more_than_its_share(world: Any, until: Any) -> None:
    writer, router, rng = await world.writer(capacity=3_000), await world.router(), random.Random(7)
    hot = [change.chunk for change in prompt(rng)]
    await flood([writer], 6_000, rng)
    writer.publish([Change(chunk, Tier.GPU, 64 * depth) for depth, chunk in enumerate(hot, 1)])
    await until(lambda: in_step(writer, router))
    assert writer.held.full
    assert router.mirror.match(hot).get(0, (0, 0))[0] < len(hot), "its end is as deep as any, and nobody used it"
    await writer.rank(dict.fromkeys(hot, 4))
    await until(lambda: router.mirror.match(hot) == {0: (STEP, 64 * STEP)})
    await flood([writer], 30_000, rng)
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(hot) == {0: (STEP, 64 * STEP)}
    assert writer.held.count == 3_000
    assert writer.held.left_out > 30_000


async def test_log_with_large_writes_stays_short(world: Any, until: Any, client: Redis) -> None:
    writer, router = await world.writer(), await world.router()
    await until(lambda: writer.epoch is not None and not writer.behind)
    chunks = [change.chunk for seed in range(4) for change in prompt(random.Random(seed))]
    for _ in range(6):
        for number in range(ENTRIES_AT_ONCE):
            writer.publish([Change(chunk, (Tier.GPU, Tier.HOST)[number % 2], 64) for chunk in chunks])
        await until(lambda: not writer.behind)
    await until(lambda: in_step(writer, router))
    async with asyncio.timeout(60):  # entries are sent before the log is trimmed; less than one of six writes stays
        while await log_bytes(client, writer) >= ENTRIES_AT_ONCE * len(chunks) * RECORD.size:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def log_bytes(client: Redis, writer: DirectoryWriter) -> int:
    assert writer.epoch is not None
    return sum(len(fields[b"r"]) for _, fields in await client.xrange(writer.keys.log(writer.epoch)))


async def test_server_memory_fits_all_shares(binary: Path, world_at: Callable[[str], Any], until: Any) -> None:
    memory, rng = 16 << 20, random.Random(8)
    server = LocalServer(binary=binary, max_memory=memory)
    server.start()
    client: Redis = Redis.from_url(server.url, protocol=2)
    try:
        world, share = world_at(server.url), capacity_within(memory, 2)
        writers = [await world.writer(name, capacity=share) for name in ("r0", "r1")]
        await flood(writers, share * 3 // 2, rng)
        await until(lambda: not any(writer.behind for writer in writers))
        router = await world.router("r0", "r1")  # reads snapshots and logs from the start
        await until(lambda: all(in_step(writer, router) for writer in writers))
        assert [writer.held.count for writer in writers] == [share, share]
        assert [(writer.degraded, writer.registrations) for writer in writers] == [(False, 1)] * 2
        info = await client.info("memory")
        assert info["used_memory_peak"] < memory
        assert info["used_memory"] > 2 * share * 12, "a chunk is a record of twelve bytes, at least"
        for writer in writers:
            await writer.close()
    finally:
        await client.aclose()
        server.stop()


async def test_growing_pool_fits_server_memory(
    binary: Path, world_at: Callable[[str], Any], until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one replica to ten, each with more entries than the server's memory has room for."""
    monkeypatch.setattr(shares, "FILE_INTERVAL", 0.02)
    memory, rng, members = 16 << 20, random.Random(8), tmp_path / "membership.json"
    config = ShareConfig(memory=memory, replicas=1, members_file=members)
    server = LocalServer(binary=binary, max_memory=memory)
    server.start()
    following: list[asyncio.Task[None]] = []
    try:
        world, writers = world_at(server.url), []

        async def grow(first: int, size: int) -> None:
            replicas = [Member(f"r{number}", f"http://127.0.0.1:{8000 + number}") for number in range(size)]
            members.write_text(json.dumps(pack_members("chat", replicas)))
            for number in range(first, size):
                writers.append(await world.writer(f"r{number}", capacity=capacity_within(memory, number + 1)))
                following.append(asyncio.create_task(shares.follow_share(config, writers[-1])))

        whole, share = capacity_within(memory, 1), capacity_within(memory, 10)
        await grow(0, 1)
        await flood(writers, whole + 5_000, rng)
        await until(lambda: writers[0].held.full and not writers[0].behind)
        assert writers[0].held.count == whole
        await grow(1, 10)
        for number, writer in enumerate(writers[1:], 1):
            await flood([writer], whole // (number + 1) + 1_000, rng)
        await until(lambda: all(writer.held.count == share and not writer.behind for writer in writers), 20.0)
        router = await world.router(*(writer.keys.replica for writer in writers))
        await until(lambda: all(in_step(writer, router) for writer in writers))
        assert [(writer.degraded, writer.registrations) for writer in writers] == [(False, 1)] * 10
        for writer in writers:
            await writer.close()
    finally:
        await end(following)
        server.stop()
