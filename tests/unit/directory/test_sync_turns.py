"""How a router's sync shares the event loop with requests, and its upkeep while no server answers.

Where requests fill the loop, each turn given back means a wait, so logs of many replicas are read in one turn.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from plumage.directory.client.tasks import end
from plumage.directory.mirror import log_follower
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.staged_snapshot import PIECE
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.held_chunks import HeldChunks
from plumage.directory.schema import Change, Tier, pack_entry

RNG = random.Random(1)
REPLICAS = 200


def entry(records: int) -> Any:
    packed = HeldChunks(10_000).record([Change(RNG.getrandbits(64), Tier.GPU, 1) for _ in range(records)])
    return b"1-0", {str(name).encode(): _bytes(value) for name, value in pack_entry(packed, None).items()}


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


async def turns_of_a_read(monkeypatch: pytest.MonkeyPatch, replicas: int, records: int) -> int:
    """How often the loop ran while an entry of so many records was read from each replica."""
    monkeypatch.setattr(log_follower, "PACE", 0.0)
    router = DirectorySync("unix:///nowhere", pool="p", mirror=Mirror())
    router.set_replicas({f"r{slot}": slot for slot in range(replicas)})
    for known in router._replicas.values():
        known.reader.begin()
        list(known.reader.commit("1.a"))
        known.loaded()

    async def read(logs: Any) -> Any:
        return [(key, [entry(records)]) for key in logs]

    monkeypatch.setattr(router._logs, "_fetch", read)
    feeding, turns = asyncio.ensure_future(router._logs.read(router._replicas.values())), 0
    while not feeding.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(router.mirror) == router.counts["changes"] == replicas * records
    assert [known.reads for known in router._replicas.values()] == [1] * replicas
    await router.close()
    return turns


async def test_few_records_of_many_replicas_take_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await turns_of_a_read(monkeypatch, REPLICAS, 1) < 10


async def test_many_records_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await turns_of_a_read(monkeypatch, 20, 4096) >= 20


async def test_replica_without_heartbeat_blocks_the_loop_for_one_piece_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with many pending chunks: all of them are kept, and all confirmed chunks are removed."""
    mirror, confirmed = Mirror(), RNG.getrandbits(64)
    router = DirectorySync("unix:///nowhere", pool="p", mirror=mirror)
    router.set_replicas({"r0": 0})
    known = router._replicas["r0"]
    known.reader.begin()
    list(known.reader.commit("1.a"))
    known.loaded()
    mirror.apply(0, [(confirmed, 1, 64)])
    for _ in range(8 * PIECE // 64):
        mirror.hold_pending([RNG.getrandbits(64) for _ in range(64)], 0, time.monotonic(), 1000.0)

    async def poll() -> None:
        known.lost()

    monkeypatch.setattr(router, "_poll", poll)
    polling, turns = asyncio.ensure_future(router._poll_turn()), 0
    async with asyncio.timeout(60):
        while mirror.match([confirmed]):
            turns += 1
            await asyncio.sleep(0)
    assert turns >= 8
    assert (mirror.pending, router.view("r0").cache_known) == (8 * PIECE, False)
    await end([polling])
    await router.close()


async def test_upkeep_of_the_mirror_runs_while_no_server_answers() -> None:
    mirror = Mirror()
    for slot in range(2):
        mirror.hold_pending([RNG.getrandbits(64) for _ in range(7)], slot, 0.0, 0.001)
    mirror.forget(1)
    async with DirectorySync("unix:///nowhere", pool="p", mirror=mirror) as router, asyncio.timeout(60):
        while len(mirror):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert router.degraded
    assert mirror.pending == 0
