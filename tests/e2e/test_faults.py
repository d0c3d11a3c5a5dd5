"""Processes killed and stopped under load: every request whose first body byte was not sent succeeds."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.pool import Pool, leftovers, load, lost, prompts, whole
from support.requests import sending

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


CHUNK_TOKENS = 256  # more tokens than a chunk of 256 bytes can have


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[Pool]:
    pool = Pool(runtime)
    try:
        pool.wait(whole(4))
        yield pool
        assert pool.stop() == 0, pool.output
        assert not (runtime / "plumage" / "chat").exists()
        assert leftovers(runtime) == []
    finally:
        pool.process.kill()
        pool.finish()


def process(view: dict[str, Any], replica: str, kind: str) -> dict[str, Any]:
    """What the supervisor says of a replica's engine or agent."""
    found: dict[str, Any] = next(entry for entry in view["replicas"] if entry["id"] == replica)[kind]
    return found


def busiest(pool: Pool) -> dict[str, Any]:
    """The replica that the router has sent most to."""
    view = pool.view()
    flying = {replica["id"]: replica["inFlight"] for replica in status(pool)["replicas"]}
    return max(view["replicas"], key=lambda replica: flying[replica["id"]])


def status(pool: Pool) -> dict[str, Any]:
    """The router's own word, not the supervisor's copy of the last second."""
    key = (pool.folder / "admin.key").read_text().strip()
    reply = httpx.get(f"{pool.url}/plumage/v1/status", headers={"Authorization": f"Bearer {key}"}, timeout=10.0)
    document: dict[str, Any] = reply.raise_for_status().json()
    return document


async def until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_engine_is_killed(pool: Pool) -> None:
    victim: dict[str, Any] = {}

    def kill() -> None:
        victim.update(busiest(pool))
        os.kill(victim["engine"]["pid"], signal.SIGKILL)

    outcomes = await load(pool, prompts(40, seed=1), kill)
    assert lost(outcomes) == []
    assert len(outcomes) == 40
    view = await pool.until(whole(4))
    again = process(view, victim["id"], "engine")
    assert again["restarts"] == victim["engine"]["restarts"] + 1
    assert again["pid"] != victim["engine"]["pid"]
    before = status(pool)["totals"]
    for prompt in prompts(40, seed=1):  # one by one: a full cache may drop what a waiting request was promised
        assert lost(await load(pool, [prompt])) == []
    after = status(pool)["totals"]
    predicted, actual = (after[name] - before[name] for name in ("predictedHitTokens", "hitTokens"))
    assert predicted <= actual + 40 * CHUNK_TOKENS, "the router still believes in what died with the engine"


async def test_an_agent_is_killed_and_its_replica_serves_on(pool: Pool) -> None:
    before = {replica["id"]: replica["finished"] for replica in status(pool)["replicas"]}
    victim: dict[str, Any] = {}

    def kill() -> None:
        victim.update(busiest(pool))
        os.kill(victim["agent"]["pid"], signal.SIGKILL)

    outcomes = await load(pool, prompts(40, seed=2), kill)
    assert lost(outcomes) == []
    assert sum(outcome.cut for outcome in outcomes) == 0, "a lost agent costs cache knowledge only"
    view = await pool.until(whole(4))
    assert process(view, victim["id"], "agent")["restarts"] == victim["agent"]["restarts"] + 1
    assert process(view, victim["id"], "engine")["pid"] == victim["engine"]["pid"]
    after = {replica["id"]: replica["finished"] for replica in status(pool)["replicas"]}
    assert after[victim["id"]] > before[victim["id"]]


async def test_the_directorys_server_is_killed(pool: Pool) -> None:
    def kill() -> None:
        os.kill(pool.view()["directory"]["pid"], signal.SIGKILL)

    before = pool.view()
    shared = prompts(1, seed=3) * 30
    outcomes = await load(pool, prompts(30, seed=4) + shared, kill)
    assert lost(outcomes) == []
    assert sum(outcome.cut for outcome in outcomes) == 0, "no engine was touched"
    lives = before["directory"]["restarts"] + 1
    view = await pool.until(lambda view: view["directory"]["restarts"] == lives and whole(4)(view))
    assert view["router"]["restarts"] == before["router"]["restarts"]
    predicted = status(pool)["totals"]["predictedHitTokens"]
    await load(pool, shared[:4])
    assert status(pool)["totals"]["predictedHitTokens"] > predicted, "the router sees caches again"


async def test_a_stopped_engine_loses_nothing(pool: Pool) -> None:
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


async def test_a_router_starts_while_the_directory_is_down(pool: Pool) -> None:
    pids, lives = pool.pids(), pool.view()["router"]["restarts"] + 1
    os.kill(pids["directory"], signal.SIGSTOP)
    try:
        os.kill(pids["router"], signal.SIGKILL)
        await pool.until(lambda view: view["router"]["restarts"] == lives and view["router"]["pid"] is not None)
        await pool.until(
            lambda view: httpx.get(f"{pool.url}/health", timeout=5.0).status_code == 200 if up(pool) else False
        )
        assert status(pool)["directory"] == "Degraded"
        assert lost(await load(pool, prompts(20, seed=6))) == []
    finally:
        os.kill(pids["directory"], signal.SIGCONT)
    await pool.until(whole(4))


def up(pool: Pool) -> bool:
    try:
        httpx.get(f"{pool.url}/health", timeout=5.0)
    except httpx.HTTPError:
        return False
    return True
