"""How a router's sync shares the loop with requests, and what it does while no server answers.

Where requests fill the loop, each turn given back is a turn waited: logs of many replicas are read at one go.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from plumage.directory import sync as sync_module
from plumage.directory.ledger import Ledger
from plumage.directory.mirror import Mirror
from plumage.directory.schema import Change, Tier, pack_entry
from plumage.directory.sync import DirectorySync

RNG = random.Random(1)
REPLICAS = 200


def entry(records: int) -> Any:
    packed = Ledger(10_000).record([Change(RNG.getrandbits(64), Tier.GPU, 1) for _ in range(records)])
    return b"1-0", {str(name).encode(): _bytes(value) for name, value in pack_entry(packed, None).items()}


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


async def turns_of_a_read(monkeypatch: pytest.MonkeyPatch, replicas: int, records: int) -> int:
    """How often the loop came round while an entry of so many records was taken from each replica."""
    monkeypatch.setattr(sync_module, "PACE", 0.0)
    router = DirectorySync("unix:///nowhere", pool="p", mirror=Mirror())
    router.set_replicas({f"r{slot}": slot for slot in range(replicas)})
    for known in router._replicas.values():
        known.follower.begin()
        list(known.follower.commit("1.a"))
        known.loaded()

    async def read(logs: Any) -> Any:
        return [(key, [entry(records)]) for key in logs]

    monkeypatch.setattr(router, "_read", read)
    feeding, turns = asyncio.ensure_future(router._feed_turn(None)), 0
    while not feeding.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(router.mirror) == router.counts["changes"] == replicas * records
    assert [known.reads for known in router._replicas.values()] == [1] * replicas
    await router.close()
    return turns


async def test_many_replicas_with_little_news_take_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await turns_of_a_read(monkeypatch, REPLICAS, 1) < 10


async def test_much_news_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await turns_of_a_read(monkeypatch, 20, 4096) >= 20


async def test_what_is_over_leaves_the_mirror_also_while_no_server_answers() -> None:
    mirror = Mirror()
    for slot in range(2):
        mirror.hold_pending([RNG.getrandbits(64) for _ in range(7)], slot, 0.0, 0.001)
    mirror.forget(1)
    async with DirectorySync("unix:///nowhere", pool="p", mirror=mirror) as router, asyncio.timeout(60):
        while len(mirror):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert router.degraded
    assert mirror.pending == 0
