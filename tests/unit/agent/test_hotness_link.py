"""An agent's prefixes ranked by the routers' counts. A count belongs to the last chunk that whole blocks complete, or
to the one before.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from plumage.hotness.fleet import HotnessDelta
from plumage_engine.agent.directory import pool_hotness
from plumage_engine.agent.directory.pool_hotness import PoolHotness
from plumage_engine.agent.index.block import Block, Origin, adopt
from plumage_engine.agent.index.local_hotness import LocalHotness


def _block(parent: Block | None, *chunks: int) -> Block:
    block = Block(len(chunks), parent, Origin(), (0, b"", 0), 16)
    block.chunks, block.reach = chunks, 1
    if parent is not None:
        adopt(parent, block)
    return block


async def test_match_of_a_router_may_end_inside_the_next_block() -> None:
    local = LocalHotness()
    link = PoolHotness("unix:///nobody.sock", "p", local, random.Random(1))
    shared = _block(None, 10, 11)
    short = _block(shared)  # one prompt continues with a block that completes no chunk …
    _block(shared, 12, 13)  # … and another with one that does: the start of that chunk may still be shared
    _block(short, 14)
    local.used(shared)
    local.used(shared)
    assert link.uses() == {shared: 2}, "the pool has no hotness of it"
    link._share.view.add(HotnessDelta(9, {11: (3, 30), 12: (4, 40), 13: (50, 50), 14: (60, 60), 10: (70, 20)}))
    assert link.uses() == {shared: 7}
    await link.close()


async def test_use_of_a_prefix_counts_for_every_chunk_of_it() -> None:
    local = LocalHotness()
    link = PoolHotness("unix:///nobody.sock", "p", local, random.Random(1))
    root = _block(None, 1, 2)
    warm, hot = _block(root, 3), _block(root, 4)
    end = _block(hot, 5, 6)
    cold = _block(None, 7)
    for block, uses in ((warm, 2), (hot, 3), (end, 9), (root, 1)):
        for _ in range(uses):
            local.used(block)
    assert cold.reach == 1
    assert await link.chunk_uses(100) == {1: 9, 2: 9, 4: 9, 5: 9, 6: 9, 3: 2}
    assert await link.chunk_uses(4) == {1: 9, 2: 9, 4: 9, 5: 9, 6: 9}, "the list ends after the hottest"
    await link.close()


async def test_loop_is_free_while_a_long_chain_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_hotness, "WALKED", 10)
    local, turns, at = LocalHotness(), 0, None
    link = PoolHotness("unix:///nobody.sock", "p", local, random.Random(1))
    for number in range(300):
        at = _block(at, number)
    assert at is not None
    local.used(at)
    counted = asyncio.create_task(link.chunk_uses(1000))
    while not counted.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 25
    assert counted.result() == dict.fromkeys(range(300), 1)
    await link.close()
