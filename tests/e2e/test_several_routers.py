"""Three routers that share a local pool's port."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pool import Pool, leftovers, prompts, ready_pool, whole
from support.requests import sending

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 2, routers=3) as pool:
        yield pool
        assert pool.stop() == 0, pool.output
        assert leftovers(runtime) == []


async def test_other_routers_answer_what_a_killed_one_had_accepted(pool: Pool) -> None:
    """Two of three are killed under load, and no client sends a request again."""
    async with sending(pool) as sender:
        for number, session in enumerate(prompts(60, seed=5, words=250)):
            sender.send(session)
            await asyncio.sleep(0.02)
            if number in (20, 40):
                os.kill(pool.pids()[f"router {number // 20}"], signal.SIGKILL)
    assert sender.lost == []
    assert all(one.whole or one.begun for one in sender.sent)
    view = await pool.until(whole(2))
    assert [router["restarts"] for router in view["routers"]] == [0, 1, 1]


async def test_stopped_router_is_named_with_its_remedy(pool: Pool) -> None:
    """The others answer, but it keeps its share of the clients."""
    pid = pool.pids()["router 1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        view = await pool.until(lambda view: bool(view["problems"]))
        (line,) = view["problems"]
        assert line.startswith("router 1 has not answered for ")
        assert line.endswith(f"kill -9 {pid} has it started again")
        assert "router 1 has not answered for " in pool.run("doctor").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    await pool.until(lambda view: not view["problems"])


async def test_status_adds_up_what_all_routers_did(pool: Pool) -> None:
    before = pool.view()["traffic"]["totals"]["requests"]
    async with sending(pool) as sender:
        for session in prompts(12, seed=6, words=50):
            sender.send(session)
    assert all(one.whole for one in sender.sent)
    await pool.until(lambda view: view["traffic"]["totals"]["requests"] == before + 12)
    shown = pool.run("status").stdout
    assert [line for line in ("router ", "router 1", "router 2") if line not in shown] == []
