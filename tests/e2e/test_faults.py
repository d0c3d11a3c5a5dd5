"""Processes killed and stopped under load: every request whose first body byte was not sent succeeds. One at a time
first; then accidents of every kind, in an order that nobody thought of."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.pool import Pool, busiest, directory_down, leftovers, load, lost, prompts, ready_pool, status, whole
from support.requests import Sender, sending

from plumage_cli.demo.load import Session

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


CHUNK_TOKENS = 256  # more tokens than a chunk of 256 bytes can have


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 4) as pool:
        yield pool
        assert pool.stop() == 0, pool.output
        assert not (runtime / "plumage" / "chat").exists()
        assert leftovers(runtime) == []


def process(view: dict[str, Any], replica: str, kind: str) -> dict[str, Any]:
    """What the supervisor says of a replica's engine or agent."""
    found: dict[str, Any] = next(entry for entry in view["replicas"] if entry["id"] == replica)[kind]
    return found


def another(victim: dict[str, Any], kind: str) -> Callable[[dict[str, Any]], bool]:
    """True if a pool of four is whole with another process in place of the victim's. It reads the view, because
    right after a kill the view may still show the old process."""
    return lambda view: whole(4)(view) and bool(process(view, victim["id"], kind)["pid"] != victim[kind]["pid"])


async def until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_pool_recovers_from_a_killed_engine(pool: Pool) -> None:
    victim: dict[str, Any] = {}

    def kill() -> None:
        victim.update(busiest(pool))
        os.kill(victim["engine"]["pid"], signal.SIGKILL)

    outcomes = await load(pool, prompts(40, seed=1), kill)
    assert lost(outcomes) == []
    assert len(outcomes) == 40

    again = process(await pool.until(another(victim, "engine")), victim["id"], "engine")
    assert again["restarts"] == victim["engine"]["restarts"] + 1
    before = status(pool)["totals"]
    for prompt in prompts(40, seed=1):  # one by one: a full cache may drop what a waiting request was promised
        assert lost(await load(pool, [prompt])) == []
    after = status(pool)["totals"]
    predicted, actual = (after[name] - before[name] for name in ("predictedHitTokens", "hitTokens"))
    assert predicted <= actual + 40 * CHUNK_TOKENS, "the router still believes in what died with the engine"


async def test_replica_serves_while_its_killed_agent_restarts(pool: Pool) -> None:
    before = {replica["id"]: replica["finished"] for replica in status(pool)["replicas"]}
    victim: dict[str, Any] = {}

    def kill() -> None:
        victim.update(busiest(pool))
        os.kill(victim["agent"]["pid"], signal.SIGKILL)

    outcomes = await load(pool, prompts(40, seed=2), kill)
    assert lost(outcomes) == []
    assert sum(outcome.cut for outcome in outcomes) == 0, "a lost agent costs cache knowledge only"
    view = await pool.until(another(victim, "agent"))
    assert process(view, victim["id"], "agent")["restarts"] == victim["agent"]["restarts"] + 1
    assert process(view, victim["id"], "engine")["pid"] == victim["engine"]["pid"]
    after = {replica["id"]: replica["finished"] for replica in status(pool)["replicas"]}
    assert after[victim["id"]] > before[victim["id"]]


async def test_pool_recovers_from_a_killed_directory_server(pool: Pool) -> None:
    before = pool.view()
    shared = prompts(1, seed=3)[0]
    async with sending(pool) as sender:
        users = [asyncio.create_task(keep_sending(sender, seed)) for seed in (4, 5)]
        users.append(asyncio.create_task(keep_sending(sender, 3, shared)))
        await until(lambda: sum(one.whole for one in sender.sent) >= 10)
        assert status(pool)["directory"] == "Fresh"
        async with directory_down(pool):
            await until(lambda: status(pool)["directory"] == "Degraded")
            served = sum(one.whole for one in sender.sent)
            await until(lambda: sum(one.whole for one in sender.sent) >= served + 20)
            assert status(pool)["directory"] == "Degraded"
        await until(lambda: status(pool)["directory"] == "Fresh")
        for user in users:
            user.cancel()
    assert sender.lost == []
    assert all(one.whole for one in sender.sent), "no engine was touched"
    view = await pool.until(whole(4))
    assert view["directory"]["restarts"] > before["directory"]["restarts"]
    assert view["routers"][0]["restarts"] == before["routers"][0]["restarts"]
    predicted = status(pool)["totals"]["predictedHitTokens"]
    await load(pool, [shared] * 4)
    assert status(pool)["totals"]["predictedHitTokens"] > predicted, "the router sees caches again"


async def test_stopped_engine_loses_no_request(pool: Pool) -> None:
    async with sending(pool) as sender:
        for session in prompts(40, seed=5):
            sender.send(session)
        await until(lambda: sum(one.whole for one in sender.sent) >= 5)
        victim = busiest(pool)["engine"]["pid"]
        os.kill(victim, signal.SIGSTOP)
        try:  # answers that had begun can only end there; all others begin elsewhere, however long it stays stopped
            await until(lambda: all(one.begun or one.error is not None for one in sender.sent))
        finally:
            os.kill(victim, signal.SIGCONT)
    assert sender.lost == []
    await pool.until(whole(4))


async def test_killed_router_restarts_without_the_directory(pool: Pool) -> None:
    """Requests come all the time. What had begun is cut with the router; the next one answers all others."""
    lives = pool.view()["routers"][0]["restarts"] + 1
    async with sending(pool) as sender:
        users = [asyncio.create_task(keep_sending(sender, seed)) for seed in (6, 7)]
        await until(lambda: sum(one.whole for one in sender.sent) >= 10)
        async with directory_down(pool):
            await until(lambda: status(pool)["directory"] == "Degraded")
            os.kill(pool.pids()["router"], signal.SIGKILL)
            killed, served = len(sender.sent), sum(one.whole for one in sender.sent)
            await pool.until(lambda view: view["routers"][0]["restarts"] == lives and view["routers"][0]["pid"])
            await until(lambda: sum(one.whole for one in sender.sent) >= served + 20)
            assert status(pool)["directory"] == "Degraded"
            assert len(sender.sent) > killed
        await until(lambda: status(pool)["directory"] == "Fresh")
        for user in users:
            user.cancel()
    assert sender.lost == []
    assert all(one.whole or one.begun for one in sender.sent)
    assert all(one.whole for one in sender.sent[killed:]), "who came after the router was killed has all of the answer"
    await pool.until(whole(4))


async def keep_sending(sender: Sender, seed: int, session: Session | None = None) -> None:
    """Ten requests a second until cancelled: always another prompt, or always the same."""
    number = 0
    while True:
        [fresh] = prompts(1, seed=1000 * seed + number, words=250)
        sender.send(session or fresh)
        number += 1
        await asyncio.sleep(0.1)


KINDS = [
    (signal.SIGKILL, "engine"),
    (signal.SIGKILL, "agent"),
    (signal.SIGKILL, "directory"),
    (signal.SIGSTOP, "engine"),
    (signal.SIGSTOP, "agent"),
    (signal.SIGSTOP, "directory"),
    (signal.SIGKILL, "router"),
    (signal.SIGSTOP, "router"),
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


async def keep_sending_mixed(sender: Sender, rng: random.Random) -> None:
    """Ten requests a second, some of them seen before, until cancelled."""
    fresh = 0
    while True:
        fresh += rng.random() < 0.7
        [session] = prompts(1, seed=1000 + rng.randrange(max(0, fresh - 20), fresh + 1), words=250, answer_tokens=16)
        sender.send(session)
        await asyncio.sleep(0.1)


async def test_pool_recovers_from_accidents_in_any_order(pool: Pool) -> None:
    async with sending(pool) as sender:
        load = asyncio.create_task(keep_sending_mixed(sender, random.Random(2)))
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
