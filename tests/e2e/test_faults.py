"""Processes killed and stopped under load: every request whose first body byte was not sent succeeds."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
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
    assert view["router"]["restarts"] == before["router"]["restarts"]
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
    """Requests come all the time. What had begun is cut with the router; all else succeeds once it listens again."""
    lives = pool.view()["router"]["restarts"] + 1
    async with sending(pool, patient=True) as sender:
        users = [asyncio.create_task(keep_sending(sender, seed)) for seed in (6, 7)]
        await until(lambda: sum(one.whole for one in sender.sent) >= 10)
        async with directory_down(pool):
            await until(lambda: status(pool)["directory"] == "Degraded")
            os.kill(pool.pids()["router"], signal.SIGKILL)
            killed, served = len(sender.sent), sum(one.whole for one in sender.sent)
            await pool.until(lambda view: view["router"]["restarts"] == lives and view["router"]["pid"] is not None)
            await until(lambda: sum(one.whole for one in sender.sent) >= served + 20)
            assert status(pool)["directory"] == "Degraded"
            assert len(sender.sent) > killed
        await until(lambda: status(pool)["directory"] == "Fresh")
        for user in users:
            user.cancel()
    assert sender.lost == []
    assert all(one.whole or one.begun for one in sender.sent)
    assert all(one.whole for one in sender.sent[killed:]), "who came after the router was killed has all of the answer"
    assert any(one.again for one in sender.sent), "some were under way, or came while nobody listened"
    await pool.until(whole(4))


async def keep_sending(sender: Sender, seed: int, session: Session | None = None) -> None:
    """Ten requests a second until cancelled: always another prompt, or always the same."""
    number = 0
    while True:
        [fresh] = prompts(1, seed=1000 * seed + number, words=250)
        sender.send(session or fresh)
        number += 1
        await asyncio.sleep(0.1)
