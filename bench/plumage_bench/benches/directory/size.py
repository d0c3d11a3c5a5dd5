"""Bytes of entries in the server and in a router: a real server that the agents' writer fills, and a new router that
reads."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from redis.asyncio import Redis

from plumage.directory.publisher.bucket_schedule import LOG_LEAST, LOG_SHARE
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import RECORD, Change, Keys, PoolKeys, Tier
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage_bench.benches.directory.waiting import until

__all__ = ["Size", "measure_size"]

POOL = "bench"
PIECE = 5000  # chunks published at once while filling
STEP = 40  # changes of an engine step during the churn
HOT_NODES = 65_536
NODES_A_DELTA = 4096


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes are per entry."""

    owners: int
    replicas: int
    entries: int
    server_bytes: float
    server_rss_bytes: float
    log_bytes: float
    hotness_bytes: float
    router_bytes: float
    cold_s: float


async def measure_size(entries: int, owners: int, replicas: int, colds: int, seed: int) -> Size:
    """Fill, then replace entries until the log has its maximal length, add hotness, then start `colds` routers one
    after the other."""
    with LocalServer(max_memory=2 << 30) as server:
        async with AsyncExitStack() as stack:
            client: Redis = await stack.enter_async_context(Redis.from_url(server.url, protocol=2))
            before, rss_before = await _memory(client)
            names = [f"r{number}" for number in range(replicas)]
            writers = [_writer(server.url, name) for name in names]
            for writer in writers:
                stack.push_async_callback(writer.close)
            await _fill(writers, entries, owners, random.Random(seed))
            await _share_hotness(server.url, random.Random(seed + 1))
            after, rss_after = await _memory(client)
            held = sum(writer.held.count for writer in writers)
            logs = sum([await _usage(client, Keys(POOL, w.keys.replica).log(w.epoch or "")) for w in writers])
            hotness = await _usage(client, PoolKeys(POOL).hotness) + await _usage(client, PoolKeys(POOL).hotness_view)
            routers = [await _cold_router(server.url, names, held) for _ in range(colds)]
    router_bytes = sorted(float(found["bytes"]) for found in routers)[len(routers) // 2] / held
    cold = max(float(found["seconds"]) for found in routers)
    return Size(
        owners, replicas, held, (after - before) / held, (rss_after - rss_before) / held, logs / held, hotness / held,
        router_bytes, cold,
    )  # fmt: skip


def _writer(url: str, name: str) -> DirectoryWriter:
    return DirectoryWriter(url, pool=POOL, replica=name, capacity=10_000_000)


async def _fill(writers: Sequence[DirectoryWriter], entries: int, owners: int, rng: random.Random) -> None:
    share = entries // len(writers)
    common = _chunks(share, rng)
    for number, writer in enumerate(writers):
        chunks = common if owners > 1 or number == 0 else _chunks(share, rng)
        for first in range(0, share, PIECE):
            writer.publish(_held(chunks[first : first + PIECE]))
            await asyncio.sleep(0)
        writer.start()
        await _sent(writer)
        await _churn(writer, chunks, rng)


def _chunks(count: int, rng: random.Random) -> array[int]:
    return array("Q", rng.randbytes(8 * count))


def _held(chunks: Sequence[int]) -> list[Change]:
    return [Change(chunk, Tier.GPU, 64 * (1 + index % 512)) for index, chunk in enumerate(chunks)]


async def _churn(writer: DirectoryWriter, chunks: Sequence[int], rng: random.Random) -> None:
    """Drop and store again, one log entry for each step, for one and a half rounds over the snapshot's buckets."""
    bytes_left = 1.5 * max(LOG_LEAST, len(chunks) * RECORD.size / LOG_SHARE)
    while bytes_left > 0:
        first = rng.randrange(max(1, len(chunks) - STEP // 2))
        some = chunks[first : first + STEP // 2]
        writer.publish(Change(chunk, Tier.GONE) for chunk in some)
        writer.publish(_held(some))
        bytes_left -= STEP * RECORD.size
        await asyncio.sleep(0)
    await _sent(writer)


async def _sent(writer: DirectoryWriter) -> None:
    await until(lambda: writer.epoch is not None and not writer.behind)


async def _share_hotness(url: str, rng: random.Random) -> None:
    """As much hotness as a pool stores: a full view, and full deltas after it until the next view is due."""
    share = HotnessShare(url, pool=POOL, capacity=HOT_NODES, period=0.01)
    share.start()
    deltas = HOT_NODES // NODES_A_DELTA
    for number in range(1, 2 * deltas + 1):
        for key in _chunks(NODES_A_DELTA, rng):
            share.use(key, 4096)
        share.request()
        await until(partial(_has_heard, share, number))
        if number == deltas:
            await share.store_view()
    await share.close()


def _has_heard(share: HotnessShare, deltas: int) -> bool:
    return share.view.requests >= deltas


async def _memory(client: Redis) -> tuple[int, int]:
    info = await client.info("memory")
    return int(info["used_memory"]), int(info["used_memory_rss"])


async def _usage(client: Redis, key: str) -> int:
    return int(await client.memory_usage(key, samples=0) or 0)


async def _cold_router(url: str, names: Sequence[str], entries: int) -> dict[str, float]:
    command = [sys.executable, "-m", "plumage_bench.benches.directory.router_process", url, POOL, str(entries), *names]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the cold router failed; its message is above")
    found: dict[str, float] = json.loads(output)
    return found
