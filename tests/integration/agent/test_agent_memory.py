"""An agent's memory does not grow with the requests that its engine has served."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest
from support.ports import free_port
from tests.integration.agent.conftest import answers, settings_of

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WARM_UP = 6_000  # until every bounded table of the configuration below is full
REQUESTS = 20_000
BOUND = 10 << 20  # bytes: half a kilobyte for each request
BLOCK = 16  # tokens
BLOCKS = 8  # a request
HELD = 300  # requests whose blocks are cached
SYSTEM_PROMPTS = 20


class Requests:
    """The events of an engine that serves one request after the other. Each has a known beginning and eight new blocks,
    and removes the eight blocks of the oldest request."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._rng = random.Random(1)
        self._held: deque[list[int]] = deque()
        self._roots = [self._keys() for _ in range(SYSTEM_PROMPTS)]
        for root in self._roots:
            publisher.publish(self._stored(root, None))

    def serve(self) -> int:
        """One more request. Returns the number of its batch."""
        blocks = self._keys()
        self._held.append(blocks)
        gone = self._held.popleft() if len(self._held) > HELD else []
        removed = [{"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU"} for key in reversed(gone)]
        return int(self._publisher.publish(*removed, self._stored(blocks, self._rng.choice(self._roots)[-1])))

    def _keys(self) -> list[int]:
        return [self._rng.getrandbits(63) for _ in range(BLOCKS)]

    def _stored(self, blocks: list[int], parent: int | None) -> dict[str, Any]:
        ids = [self._rng.randrange(300, 600) for _ in range(BLOCK * len(blocks))]
        return {
            "type": "BlockStored",
            "block_hashes": blocks, "parent_block_hash": parent, "token_ids": ids, "block_size": BLOCK, "medium": "GPU",
        }  # fmt: skip


async def serve(requests: Requests, number: int, client: httpx.AsyncClient) -> dict[str, Any]:
    """So many requests, not faster than the agent hears of them; its figures at the end."""
    stats: dict[str, Any] = {}
    for start in range(0, number, 200):
        for _ in range(min(200, number - start)):
            last = requests.serve()
        async with asyncio.timeout(60):
            while stats.get("events", {}).get("batches", 0) <= last:
                await asyncio.sleep(0.01)
                stats = (await client.get("/v1/plumage/stats")).json()
    return stats


async def test_memory_does_not_grow_with_requests(
    directory: Any, stock: Any, start_publisher: Callable[..., Any], start_agent: Callable[..., Any]
) -> None:
    publisher, port = start_publisher(kept=1000), free_port()
    requests = Requests(publisher)
    small = {"maxBlocks": 3_000, "maxIds": 8_000, "maxChunks": 4_000}
    agent = start_agent(**settings_of(directory, "memory", stock, publisher, port, **small))
    await answers(f"http://127.0.0.1:{port}/readyz")
    process = psutil.Process(agent.process.pid)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        stats = await serve(requests, WARM_UP, client)
        before = process.memory_info().rss
        stats = await serve(requests, REQUESTS, client)
        grown = process.memory_info().rss - before
    assert stats["index"]["stored"] >= BLOCKS * REQUESTS
    assert stats["blocks"] == BLOCKS * (SYSTEM_PROMPTS + HELD)
    assert grown < BOUND, f"{grown / REQUESTS:.0f} bytes a request were kept, {before >> 20} MiB before"
