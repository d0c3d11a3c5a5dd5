"""Accidents of every kind, in an order that nobody thought of, while requests come: all heals and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.pool import Pool, leftovers, prompts, whole
from support.requests import Sender, sending

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]

KINDS = [
    (signal.SIGKILL, "engine"),
    (signal.SIGKILL, "agent"),
    (signal.SIGKILL, "directory"),
    (signal.SIGSTOP, "engine"),
    (signal.SIGSTOP, "agent"),
    (signal.SIGSTOP, "directory"),
    (signal.SIGSTOP, "router"),  # not killed: the requests that it holds would go with it
]
LONGEST_STOP = 2.5  # seconds


class Accidents:
    """Every kind twice, shuffled. They overlap, but for engines: one of them is away at a time, so that a request
    without a first byte always has somewhere to go."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool = pool
        self._rng = random.Random(seed)
        self._stopped: set[asyncio.Task[None]] = set()
        self._engine: asyncio.Task[None] | None = None

    async def happen(self) -> None:
        kinds = 2 * KINDS
        self._rng.shuffle(kinds)
        for number, role in kinds:
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))
            if role == "engine" and self._engine is not None:
                await self._engine
            await self._strike(number, role)
        await asyncio.gather(*self._stopped)

    async def _strike(self, number: signal.Signals, role: str) -> None:
        replica = f"chat-{self._rng.randrange(4)}"
        pid = await self._pid(role, replica)
        with suppress(ProcessLookupError):  # an earlier accident was quicker
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            resuming = asyncio.create_task(self._resume(pid, self._rng.uniform(0.3, LONGEST_STOP)))
            self._stopped.add(resuming)
        if role == "engine":
            self._engine = asyncio.create_task(self._serves(replica, pid, number))

    async def _pid(self, role: str, replica: str) -> int:
        """Of a process that runs: the supervisor may just be starting it again."""
        name = f"{role} {replica}" if role in ("engine", "agent") else role
        while name not in (pids := await asyncio.to_thread(self._pool.pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return pids[name]

    async def _resume(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _serves(self, replica: str, pid: int, number: signal.Signals) -> None:
        """Until the router sends to this replica again."""
        if number == signal.SIGSTOP:
            await asyncio.sleep(LONGEST_STOP)

        def condition(view: dict[str, Any]) -> bool:
            engine = next(one["engine"] for one in view["replicas"] if one["id"] == replica)
            seen = next(one for one in view["traffic"]["replicas"] if one["id"] == replica)
            again = number == signal.SIGSTOP or engine["pid"] not in (None, pid)
            return again and seen["state"] == "Ready" and seen["why"] is None

        await self._pool.until(condition)


async def keep_sending(sender: Sender, rng: random.Random) -> None:
    """Ten requests a second, some of them seen before, until cancelled."""
    fresh = 0
    while True:
        fresh += rng.random() < 0.7
        [session] = prompts(1, seed=1000 + rng.randrange(max(0, fresh - 20), fresh + 1), words=250, answer_tokens=16)
        sender.send(session)
        await asyncio.sleep(0.1)


async def test_pool_recovers_from_accidents_in_any_order(runtime: Path) -> None:
    pool = Pool(runtime)
    try:
        await pool.until(whole(4))
        async with sending(pool) as sender:
            load = asyncio.create_task(keep_sending(sender, random.Random(2)))
            await Accidents(pool, seed=3).happen()
            load.cancel()
        assert sender.lost == []
        assert len(sender.sent) > 50
        assert all(one.whole or one.begun for one in sender.sent)
        await pool.until(whole(4))
        async with sending(pool) as sender:
            for session in prompts(8, seed=9):
                sender.send(session)
        assert all(one.whole for one in sender.sent), "as if nothing had happened"
        assert await asyncio.to_thread(pool.stop) == 0, pool.output
    finally:
        pool.process.kill()
        pool.finish()
    assert leftovers(runtime) == []
