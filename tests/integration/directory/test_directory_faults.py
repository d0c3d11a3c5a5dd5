"""Faults between agents, server and routers, and the recovery from them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis
from support.following import in_step

from plumage.directory.publisher import outbox as outbox_module
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, Keys, State, Tier
from plumage.directory.server.local_server import LocalServer

RNG = random.Random(1)
CHAIN = [RNG.getrandbits(64) for _ in range(10)]
WHOLE = (10, 640)


def held(chain: Sequence[int]) -> list[Change]:
    return [Change(chunk, Tier.GPU, 64 * (depth + 1)) for depth, chunk in enumerate(chain)]


def sent(writer: DirectoryWriter) -> bool:
    return writer.epoch is not None and not writer.behind and not writer.degraded


@pytest.mark.parametrize("afterwards", ["busy", "quiet"])
async def test_router_behind_log_reads_snapshot(
    world: Any, until: Any, relay: Any, client: Redis, afterwards: str
) -> None:
    writer, router = await world.writer(heartbeat_seconds=0.05), await world.router(url=relay.url)
    writer.publish(held(CHAIN[:3]))
    await until(lambda: router.mirror.match(CHAIN) == {0: (3, 192)})
    relay.flowing.clear()
    for _ in range(3):
        writer.publish([Change(RNG.getrandbits(64), Tier.GPU, 1) for _ in range(24)])
    writer.publish(held(CHAIN))
    await until(
        lambda: sent(writer) and writer._publication.outbox.last_checked == writer._publication.outbox.last
    )  # including the entry that ends a busy time
    pipe = client.pipeline()
    for command in writer._epochs._bucket_commands(
        writer.epoch, range(64)
    ):  # the round over the buckets that a busy engine makes
        pipe.execute_command(*command)
    pipe.xtrim(Keys("p", "r0").log(writer.epoch), maxlen=0, approximate=False)
    await pipe.execute()
    if afterwards == "busy":
        writer.publish([Change(1, Tier.GPU, 1)])
        await until(lambda: sent(writer))
    relay.flowing.set()
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}
    assert router.counts["snapshot_gap"] == 1


async def test_digest_mismatch_reads_snapshot(world: Any, until: Any) -> None:
    writer, router = await world.writer(heartbeat_seconds=0.05), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE})
    router.mirror.apply(0, [(CHAIN[2], 0, 0)])
    router._replicas["r0"].reader.digest ^= 1
    await until(lambda: router.counts["snapshot_digest"] == 1 and in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}


async def test_repeated_writes_change_nothing(world: Any, until: Any, relay: Any, client: Redis) -> None:
    writer, router = await world.writer(url=relay.url, heartbeat_seconds=0.05), await world.router()
    await until(lambda: sent(writer))
    for chunk in CHAIN:
        relay.mute = True  # the server applies the write, but its reply is lost
        before = relay.thrown_away
        writer.publish([Change(chunk, Tier.GPU, 64)])
        await until(lambda before=before: relay.thrown_away > before)
        relay.cut()
        relay.mute = False
        await until(lambda: sent(writer))
    await until(lambda: in_step(writer, router))
    assert all(router.mirror.match([chunk]) == {0: (1, 64)} for chunk in CHAIN)
    entries = await client.xrange(Keys("p", "r0").log(writer.epoch))
    numbers = [int(identifier.partition(b"-")[0]) for identifier, _ in entries]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert writer.registrations == 1
    assert router.counts["snapshot_digest"] == router.counts["snapshot_gap"] == 0


async def test_router_works_without_server_that_restarts_empty(world: Any, until: Any, server: LocalServer) -> None:
    writer, router = await world.writer(), await world.router()
    writer.publish(held(CHAIN[:6]))
    await until(lambda: router.mirror.match(CHAIN) == {0: (6, 384)})
    server.stop()
    await until(lambda: router.degraded and writer.degraded)
    writer.publish(held(CHAIN))
    assert router.mirror.match(CHAIN) == {0: (6, 384)}
    server.start()
    while router.mirror.match(CHAIN) != {0: WHOLE}:
        assert router.mirror.match(CHAIN) == {0: (6, 384)}, (
            "the router keeps all entries while the agents write them again"
        )
        await asyncio.sleep(0.01)
    await until(lambda: not router.degraded and not writer.degraded and in_step(writer, router))
    assert writer.registrations == 2


async def test_emptied_server_is_detected(world: Any, until: Any, client: Redis) -> None:
    writer, router = await world.writer(heartbeat_seconds=0.05), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: in_step(writer, router))
    epoch = writer.epoch
    await client.flushall()
    await until(lambda: writer.epoch not in (None, epoch) and in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}


async def test_emptied_server_keeps_no_key_without_lifetime(world: Any, until: Any, client: Redis) -> None:
    writer = await world.writer(heartbeat_seconds=0.3)
    writer.publish(held(CHAIN))
    await until(lambda: sent(writer))
    first = writer.epoch
    await client.flushall()
    writer.publish([Change(1, Tier.GPU, 1)])  # written unnoticed into a log of the former epoch
    await until(
        lambda: (
            writer.epoch not in (None, first) and sent(writer) and not writer._epochs._leftover_epochs - {writer.epoch}
        )
    )
    left = [key async for key in client.scan_iter()]
    assert {await client.ttl(key) > 0 for key in left} == {True}
    assert not [key for key in left if first.encode() in key]


async def test_lost_last_entries_are_detected(world: Any, until: Any, client: Redis) -> None:
    writer, router = await world.writer(heartbeat_seconds=0.2), await world.router()
    await until(lambda: sent(writer))
    log = Keys("p", "r0").log(writer.epoch)
    early = await client.dump(log)
    writer.publish(held(CHAIN))
    await until(lambda: in_step(writer, router))
    epoch = writer.epoch
    await client.restore(log, 60_000, early, replace=True)  # as a failover does to entries that are not replicated yet
    await until(lambda: writer.epoch not in (None, epoch) and in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}


@pytest.mark.parametrize("lost", ["last entries", "log", "log and snapshot", "registration"])
async def test_lost_entries_before_newer_ones_are_detected(world: Any, until: Any, client: Redis, lost: str) -> None:
    """An engine in use appends entries between the loss and the next heartbeat, and a router reads them as a gap."""
    writer = await world.writer(heartbeat_seconds=3)
    await until(lambda: sent(writer))
    log = Keys("p", "r0").log(writer.epoch)
    early = await client.dump(log)
    writer.publish(held(CHAIN[:5]))
    await until(lambda: sent(writer))
    epoch = writer.epoch
    if lost == "last entries":
        await client.restore(log, 60_000, early, replace=True)
    elif lost == "registration":
        await client.decr(Keys("p", "r0").epoch)
    else:
        await client.unlink(log, *([Keys("p", "r0").snap(epoch)] if "snapshot" in lost else []))
    writer.publish(held(CHAIN)[5:])
    await until(lambda: sent(writer))
    assert (await client.xinfo_stream(log))["last-generated-id"] == f"{writer._publication.outbox.last}-0".encode()
    assert writer.epoch == epoch
    writer._timer.expire()
    router = await world.router()
    await until(lambda: writer.epoch not in (None, epoch) and in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}


async def test_unsent_changes_are_bounded(
    world: Any, until: Any, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "OUTBOX_BYTES", 20_000)
    writer, router = await world.writer(), await world.router()
    await until(lambda: sent(writer))
    server.stop()
    await until(lambda: writer.degraded)
    for _ in range(200):
        writer.publish([Change(RNG.getrandbits(64), Tier.GPU, 1) for _ in range(50)])
        assert writer._publication.outbox.size <= 20_000
    writer.publish(held(CHAIN))
    server.start()
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}
    assert writer.held.count == 10_010


async def test_full_server_degrades_writer_until_there_is_room(
    world: Any, until: Any, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    writer, router = await world.writer(), await world.router()
    await until(lambda: sent(writer))
    await client.config_set("maxmemory", 1)
    writer.publish(held(CHAIN))
    await until(lambda: writer.degraded)
    assert "maxmemory" in caplog.text
    await client.config_set("maxmemory", 64 << 20)
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}
    keys = [key async for key in client.scan_iter()]
    assert len(keys) == 4, f"unfinished epochs are cleaned up: {keys}"


async def test_newer_schema_is_ignored_and_counted(world: Any, until: Any, client: Redis) -> None:
    old, new = await world.writer("r0"), await world.writer("r1")
    old.publish(held(CHAIN))
    new.publish(held(CHAIN))
    await until(lambda: sent(old) and sent(new))
    await new.close(forget=False)
    await client.hset(Keys("p", "r1").beat, "v", 2)
    router = await world.router("r0", "r1")
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE})
    await until(lambda: router.counts["newer_schema"] > 0)
    assert not router.view("r1").cache_known


async def test_log_of_newer_schema_clears_replica(world: Any, until: Any, client: Redis) -> None:
    writer, router = await world.writer(), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: in_step(writer, router))
    await writer.close(forget=False)
    seq = router._replicas["r0"].reader.seq
    await client.xadd(Keys("p", "r0").log(writer.epoch), {"v": 2, "z": "?"}, id=f"{seq + 1}-0")
    await until(lambda: router.counts["newer_schema"] > 0)
    await asyncio.sleep(0.3)
    assert router.mirror.match(CHAIN) == {}
    assert router.counts["snapshot_new"] == 1, "it is not read again and again"


@pytest.mark.parametrize("field", ["epoch", "state", "count"])
async def test_malformed_heartbeat_affects_one_replica(world: Any, until: Any, client: Redis, field: str) -> None:
    writer = await world.writer("r0")
    writer.publish(held(CHAIN))
    await client.hset(Keys("p", "r1").beat, mapping={"v": 1, field: "\xff"})
    router = await world.router("r0", "r1")
    await until(lambda: router.counts["malformed"] > 0 and router.mirror.match(CHAIN) == {0: WHOLE})


async def test_error_in_one_log_affects_one_replica(world: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = await world.writer("r0"), await world.writer("r1")
    router = await world.router("r0", "r1")
    await until(lambda: in_step(one, router) and in_step(other, router))

    def broken(*_: Any) -> int:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(router._replicas["r0"].reader, "take", broken)
    for chunk in CHAIN:
        one.publish([Change(chunk, Tier.GPU, 64)])
        other.publish([Change(chunk, Tier.GPU, 64)])
        await until(lambda: in_step(other, router))
    await until(lambda: router.counts["failures"] > 0)
    monkeypatch.undo()
    await until(lambda: in_step(one, router))


async def test_error_in_one_heartbeat_affects_one_replica(
    world: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await world.writer("r0"), await world.writer("r1")
    router = await world.router("r0", "r1")
    await until(lambda: in_step(one, router) and in_step(other, router))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(router._replicas["r0"], "heard", broken)
    for writer in (one, other):
        writer.publish(held(CHAIN))
        writer.report(state=State.READY)
    await until(lambda: router.view("r1").state is State.READY and router.counts["failures"] > 0)
    assert router.view("r0").state is not State.READY
    assert not router.degraded, "the server answers"
    monkeypatch.undo()
    await until(lambda: router.view("r0").state is State.READY and in_step(one, router) and in_step(other, router))


async def test_torn_snapshot_is_not_used(world: Any, until: Any, client: Redis) -> None:
    writer = await world.writer(heartbeat_seconds=0.05)
    writer.publish(held(CHAIN))
    await until(lambda: sent(writer))
    snapshot = Keys("p", "r0").snap(writer.epoch)
    kept = await client.hget(snapshot, "7")
    await client.hset(snapshot, "7", b"torn")
    router = await world.router()
    await until(lambda: router.counts["malformed"] > 0)
    assert not router.view("r0").cache_known
    await client.hset(snapshot, "7", kept)
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: WHOLE}


async def test_router_starts_without_server_and_recovers(world: Any, until: Any, server: LocalServer) -> None:
    server.stop()
    router = await world.router()
    await until(lambda: router.counts["failures"] > 1)
    assert router.degraded
    router.mirror.hold_pending(CHAIN, 0, 0.0, 1e12)
    assert router.mirror.match(CHAIN)[0][0] == 10, "it goes on with what it knows itself"
    server.start()
    writer = await world.writer()
    writer.publish(held(CHAIN[:4]))
    writer.report(state=State.READY)
    await until(lambda: not router.degraded and in_step(writer, router))


async def test_engine_emptied_during_heartbeat_stays_in_step(world: Any, until: Any, relay: Any) -> None:
    writer, router = await world.writer(url=relay.url, heartbeat_seconds=0.05), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: in_step(writer, router))
    for _ in range(20):
        relay.flowing.clear()
        await asyncio.sleep(0.06)  # a heartbeat is being sent
        writer.clear()
        relay.flowing.set()
        await asyncio.sleep(0.005)
    writer.publish(held(CHAIN[:2]))
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: (2, 128)}
