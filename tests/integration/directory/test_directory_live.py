"""Writer, server and router together: a router knows what an agent writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from support.following import in_step

from plumage.directory.schema import BEAT_TTL, Beat, Change, Keys, Load, State, Tier
from plumage.hashing import chunks

RNG = random.Random(1)
CHAIN = [RNG.getrandbits(64) for _ in range(10)]
WHOLE = (10, 640)


def held(chain: Sequence[int], tier: Tier = Tier.GPU) -> list[Change]:
    return [Change(chunk, tier, 64 * (depth + 1)) for depth, chunk in enumerate(chain)]


def gone(chain: Sequence[int]) -> list[Change]:
    return [Change(chunk, Tier.GONE) for chunk in chain]


async def everything(client: Redis) -> dict[bytes, bytes]:
    """Everything on the server, as one string of bytes for each key."""
    found = {}
    for key in [key async for key in client.scan_iter()]:
        kind = await client.type(key)
        if kind == b"hash":
            value = b"".join(part for pair in (await client.hgetall(key)).items() for part in pair)
        elif kind == b"stream":
            value = b"".join(v for _, entry in await client.xrange(key) for pair in entry.items() for v in pair)
        else:
            value = await client.get(key)
        found[key] = value
    return found


async def test_router_mirrors_engine_blocks(world: Any, until: Any) -> None:
    writer, router = await world.writer(), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE})
    writer.publish(gone(CHAIN[6:]))
    await until(lambda: router.mirror.match(CHAIN) == {0: (6, 384)})
    writer.publish(held(CHAIN[:3], Tier.HOST))
    await until(lambda: in_step(writer, router))
    assert router.mirror.match(CHAIN) == {0: (6, 384)}, "a chunk in host memory is held"


async def test_mirror_matches_after_many_steps(world: Any, until: Any) -> None:
    names = [f"r{number}" for number in range(4)]
    writers = [await world.writer(name) for name in names]
    router = await world.router(*names)
    rng, truth = random.Random(2), [set[int]() for _ in names]
    universe = [rng.getrandbits(64) for _ in range(3000)]
    for step in range(400):
        for writer, holds in zip(writers, truth, strict=True):
            changes = [Change(chunk, rng.choice(list(Tier)), 1) for chunk in rng.choices(universe, k=20)]
            writer.publish(changes)
            for chunk, tier, _ in changes:
                (holds.add if tier else holds.discard)(chunk)
        if step % 20 == 0:
            await asyncio.sleep(0.005)
    await until(lambda: all(in_step(writer, router) for writer in writers))
    for chunk in universe:
        assert set(router.mirror.match([chunk])) == {slot for slot, holds in enumerate(truth) if chunk in holds}


async def test_new_router_reads_snapshot_and_log(world: Any, until: Any) -> None:
    writer = await world.writer()
    rng = random.Random(3)
    for _ in range(300):
        writer.publish(held([rng.getrandbits(64) for _ in range(40)]))
        await asyncio.sleep(0)
    writer.publish(held(CHAIN))
    await until(lambda: writer.epoch is not None and not writer.behind)
    router = await world.router()
    await until(lambda: router.caught_up)
    assert in_step(writer, router)
    assert router.mirror.match(CHAIN) == {0: WHOLE}
    assert router.counts["snapshot_new"] == 1


async def test_registration_and_heartbeat(world: Any, until: Any, client: Redis) -> None:
    writer = await world.writer(engine="tiny@16", heartbeat_seconds=0.05)
    router = await world.router()
    writer.publish(held(CHAIN))
    writer.report(state=State.READY, load=Load(running=3, waiting=1, kv_usage=0.5))
    await until(lambda: router.view("r0").state is State.READY and router.view("r0").chunks == 10)
    await until(lambda: router.view("r0").cache_known)
    view = router.view("r0")
    assert (view.load, view.engine, view.epoch) == (Load(3, 1, 0.5), "tiny@16", writer.epoch)
    beat = Beat.from_hash(await client.hgetall(Keys("p", "r0").beat))
    assert (beat.count, beat.digest) == (10, sum(CHAIN) % 2**64)


async def test_writer_publishes_a_new_state_at_once(world: Any, until: Any) -> None:
    writer, router = await world.writer(heartbeat_seconds=3.0), await world.router()
    await until(lambda: router.view("r0").state is State.WARMING)
    writer.report(state=State.DRAINING)
    await until(lambda: router.view("r0").state is State.DRAINING)


async def test_every_key_has_a_lifetime(world: Any, until: Any, client: Redis) -> None:
    writer = await world.writer()
    writer.publish(held(CHAIN))
    await until(lambda: writer.epoch is not None and not writer.behind)
    keys = [key async for key in client.scan_iter()]
    assert len(keys) == 4, "epoch, heartbeat, snapshot, log"
    assert all([await client.pttl(key) > 0 for key in keys])
    assert await client.pttl(Keys("p", "r0").beat) <= BEAT_TTL * 1000


async def test_silent_replica_has_unknown_cache(world: Any, until: Any, client: Redis) -> None:
    writer, router = await world.writer(), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE})
    router.mirror.hold_pending([*CHAIN[:2], 5], 0, 0.0, 1e12)
    router._server.grace_until = 0.0
    writer._task.cancel()  # the agent was killed, so it removed nothing
    await client.pexpire(Keys("p", "r0").beat, 1)
    await until(lambda: not router.view("r0").cache_known)
    assert router.mirror.match(CHAIN) == {}
    assert router.mirror.match([5]) == {0: (1, 192)}, "what the router expects of it stays"


async def test_closed_writer_removes_its_keys(world: Any, until: Any, client: Redis) -> None:
    writer = await world.writer()
    writer.publish(held(CHAIN))
    await until(lambda: writer.epoch is not None and not writer.behind)
    await writer.close()
    assert [key async for key in client.scan_iter()] == [Keys("p", "r0").epoch.encode()]


async def test_restarted_agent_begins_new_epoch(world: Any, until: Any, client: Redis) -> None:
    first = await world.writer(heartbeat_seconds=0.05)
    router = await world.router()
    first.publish(held(CHAIN))
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE})
    second = await world.writer(heartbeat_seconds=0.05)
    second.publish(held(CHAIN[:4]))
    await until(lambda: router.mirror.match(CHAIN) == {0: (4, 256)})
    await until(lambda: first.superseded)
    first.publish(held(CHAIN))
    await asyncio.sleep(0.2)
    assert router.mirror.match(CHAIN) == {0: (4, 256)}, "the one that was replaced says nothing any more"
    assert first.epoch != second.epoch
    keys = Keys("p", "r0")
    async with asyncio.timeout(30.0):  # nothing is left of the old epoch
        while await client.exists(keys.log(first.epoch), keys.snap(first.epoch)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_writer_publishes_an_emptied_engine(world: Any, until: Any) -> None:
    writer, router = await world.writer(), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE})
    writer.clear()
    writer.publish(held(CHAIN[:1]))
    await until(lambda: router.mirror.match(CHAIN) == {0: (1, 64)})


async def test_replica_set_changes(world: Any, until: Any) -> None:
    one, two = await world.writer("r0"), await world.writer("r1")
    one.publish(held(CHAIN))
    two.publish(held(CHAIN[:5]))
    router = await world.router("r0", "r1")
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE, 1: (5, 320)})
    router.set_replicas({"r1": 0})
    assert router.mirror.match(CHAIN) == {}
    await until(lambda: router.mirror.match(CHAIN) == {0: (5, 320)})
    assert not router.view("r0").cache_known


async def test_server_has_no_prompt_or_token_id(world: Any, until: Any, client: Redis) -> None:
    text = b"The quick brown fox asks for its bank balance. " * 60
    ids = list(range(50_000, 50_400))
    writer = await world.writer(engine="tiny@16")
    seed = chunks.seed("model", "acme-law", "tenant-secret-salt")
    writer.publish(held(chunks.chain(text, seed)))
    await until(lambda: writer.epoch is not None and not writer.behind)
    await writer._epochs.send(writer.epoch, beat=True)
    found = await everything(client)
    assert len(found) == 4
    for value in found.values():
        assert b"quick" not in value
        assert b"secret" not in value
        assert b"acme" not in value
        for size in (2, 4, 8):
            assert b"".join(token.to_bytes(size, "little") for token in ids[:2]) not in value


async def test_tenants_with_different_salts_never_match(world: Any, until: Any) -> None:
    text = b"You are a helpful assistant. " * 100
    mine, theirs = (chunks.chain(text, chunks.seed("model", "", salt)) for salt in ("a", "b"))
    writer, router = await world.writer(), await world.router()
    writer.publish(held(mine))
    await until(lambda: router.mirror.match(mine) == {0: (len(mine), 64 * len(mine))})
    assert router.mirror.match(theirs) == {}
