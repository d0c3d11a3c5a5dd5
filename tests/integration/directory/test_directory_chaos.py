"""Random faults in random order: afterwards routers know exactly what engines cache."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from redis.asyncio import Redis
from support.following import in_step

from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, Tier
from plumage.directory.server.local_server import LocalServer

NAMES = ("r0", "r1", "r2")


class Chaos:
    """Three engines with their writers, one router, and the possible faults."""

    def __init__(self, seed: int, world: Any, server: LocalServer, client: Redis, relays: list[Any]) -> None:
        self.rng = random.Random(seed)
        self.universe = [self.rng.getrandbits(64) for _ in range(400)]
        self.truth: list[dict[int, int]] = [{} for _ in NAMES]
        self.writers: list[DirectoryWriter] = []
        self._world, self._server, self._client = world, server, client
        self._relays = relays

    async def start(self) -> DirectorySync:
        for slot in range(len(NAMES)):
            self.writers.append(await self._writer(slot))
        router: DirectorySync = await self._world.router(*NAMES, url=self._relays[-1].url)
        return router

    async def _writer(self, slot: int) -> DirectoryWriter:
        writer: DirectoryWriter = await self._world.writer(
            NAMES[slot], url=self._relays[slot].url, heartbeat_seconds=0.1
        )
        return writer

    async def act(self) -> None:
        action = self.rng.choices(
            (self.step, self.cut, self.stall, self.swallow, self.empty_server, self.restart_server,
             self.restart_agent, self.reset_engine),
            (60, 4, 4, 4, 1, 0.5, 2, 2),
        )[0]  # fmt: skip
        await action()

    async def step(self) -> None:
        slot = self.rng.randrange(len(NAMES))
        changes = [
            Change(chunk, self.rng.choice(list(Tier)), self.rng.randrange(1, 1000))
            for chunk in self.rng.choices(self.universe, k=self.rng.randrange(1, 30))
        ]
        self.writers[slot].publish(changes)
        for chunk, tier, tokens in changes:
            if tier:
                self.truth[slot][chunk] = tokens
            else:
                self.truth[slot].pop(chunk, None)
        await asyncio.sleep(self.rng.choice([0, 0, 0.005]))

    async def cut(self) -> None:
        self.rng.choice(self._relays).cut()

    async def stall(self) -> None:
        relay = self.rng.choice(self._relays)
        relay.flowing.clear()
        for _ in range(10):
            await self.step()
        relay.flowing.set()

    async def swallow(self) -> None:
        """Writes arrive, but their replies do not."""
        relay = self.rng.choice(self._relays)
        relay.mute = True
        for _ in range(5):
            await self.step()
        await asyncio.sleep(0.02)
        relay.cut()
        relay.mute = False

    async def empty_server(self) -> None:
        await self._client.flushall()

    async def restart_server(self) -> None:
        await asyncio.to_thread(self._server.stop)
        self._server.start()

    async def restart_agent(self) -> None:
        slot = self.rng.randrange(len(NAMES))
        await self.writers[slot].close(forget=self.rng.random() < 0.5)
        self.writers[slot] = await self._writer(slot)
        self.writers[slot].publish([Change(chunk, Tier.GPU, tokens) for chunk, tokens in self.truth[slot].items()])

    async def reset_engine(self) -> None:
        slot = self.rng.randrange(len(NAMES))
        self.writers[slot].clear()
        self.truth[slot].clear()

    def agrees(self, router: DirectorySync) -> bool:
        return all(self._in_step(router, slot) for slot in range(len(NAMES))) and not router.degraded

    def _in_step(self, router: DirectorySync, slot: int) -> bool:
        writer = self.writers[slot]
        return in_step(writer, router) and writer.held.count == len(self.truth[slot]) and not writer.behind


@pytest.mark.parametrize("seed", range(4))
async def test_random_faults_heal(
    seed: int, world: Any, server: LocalServer, client: Redis, relay_to: Any, until: Any, tmp_path: Any
) -> None:
    relays = [relay_to(server.socket) for _ in range(len(NAMES) + 1)]
    for number, relay in enumerate(relays):
        await relay.listen(tmp_path / f"{number}.sock")
    chaos = Chaos(seed, world, server, client, relays)
    router = await chaos.start()
    for _ in range(250):
        await chaos.act()
    await until(lambda: chaos.agrees(router), within=60.0)
    for chunk in chaos.universe:
        owners = {slot for slot, held in enumerate(chaos.truth) if chunk in held}
        assert set(router.mirror.match([chunk])) == owners
