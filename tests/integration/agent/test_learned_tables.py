"""What an engine's stop policy learned reaches a new engine with the same fingerprint, through agents and directory."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from support.agents import until

from plumage.batching.stop.shared import LearnedTable, merged
from plumage.batching.stop.step_time import StepTime
from plumage.directory.client.tasks import end
from plumage.directory.schema import SCHEMA_VERSION, PoolKeys
from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.shared_hash import HEAD
from plumage_engine.agent.engine.client import EngineClient
from plumage_engine.agent.engine_updates.learned_tables import LearnedTablesSync

pytestmark = pytest.mark.redis

LEARNED = [[4, 1, 2, "Add", 10.0, 5000.0], [4, 1, 2, "Stop", 12.0, 12000.0]]
PATH = "/v1/plumage/tables"


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> str:
    return request.node.name.partition("[")[0]


@asynccontextmanager
async def linked(directory: LocalServer, pool: str, engine: Any, replica: str) -> AsyncIterator[LearnedTablesSync]:
    """The parts of an agent that share tables."""
    client = EngineClient(engine.url)
    link = LearnedTablesSync(directory.url, pool, replica, client, period=0.05)
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        await end([task])
        await link.close()
        await client.close()


@asynccontextmanager
async def both_linked(
    directory: LocalServer, pool: str, old: Any, new: Any
) -> AsyncIterator[tuple[LearnedTablesSync, LearnedTablesSync]]:
    """The same of two engines, once the new one has what the old one learned."""
    async with linked(directory, pool, old, "r0") as first:
        await until(lambda: first.counts["sent"] >= 1)
        async with linked(directory, pool, new, "r1") as second:
            await until(lambda: second.counts["applied"] == 1)
            yield first, second


def table(engine: Any) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(engine.url + PATH, timeout=10).raise_for_status().json()
    return found


def send_table(engine: Any, **changes: Any) -> int:
    body = {**table(engine), "rows": LEARNED, **changes}
    return httpx.post(engine.url + PATH, json=body, timeout=10).status_code


def bandit(make_engine: Any, **settings: Any) -> Any:
    return make_engine(feather={"policy": "Bandit"}, **settings)


async def test_new_engine_starts_from_shared_table(directory, pool, make_engine) -> None:
    old, new, other = bandit(make_engine), bandit(make_engine), bandit(make_engine, maxNumSeqs=7)
    assert table(old)["rows"] == []
    assert table(old)["fingerprint"] == table(new)["fingerprint"] != table(other)["fingerprint"]
    assert send_table(old) == 204
    async with both_linked(directory, pool, old, new) as (first, second):
        assert table(new)["rows"] == LEARNED
        await until(lambda: second.counts["sent"] > 1 and first.counts["read"] > 1)
        assert table(old)["rows"] == LEARNED, "tables that it shared must not come back as new samples"
        async with linked(directory, pool, other, "r2") as third:
            await until(lambda: third._offers is not None and third._offers.rounds > 2)
            assert table(other)["rows"] == []
            assert third.counts["applied"] == 0
    async with Redis.from_url(directory.url) as client:
        assert await client.pttl(PoolKeys(pool).tables(table(old)["fingerprint"])) > 0


async def test_new_engine_predicts_by_the_fit_of_another(directory, pool, make_engine) -> None:
    old, new = (make_engine(feather={"policy": "Predictive"}) for _ in range(2))
    rng, fit = random.Random(1), StepTime()
    for _ in range(1000):
        x = [1.0, rng.randint(1, 64), rng.choice([0, 100]), *(rng.randint(0, 2000) for _ in range(3))]
        fit.learn(x, 5e-3 + 2e-4 * x[1] + 3e-5 * x[3])
    rows = [[*row] for row in merged([fit.rows()])]
    assert send_table(old, rows=rows) == 204
    assert send_table(old, rows=rows[1:]) == 400
    async with both_linked(directory, pool, old, new):
        assert table(new)["rows"] == rows


async def test_corrupt_and_newer_tables_are_refused_and_counted(directory, pool, make_engine) -> None:
    new = bandit(make_engine)
    key = PoolKeys(pool).tables(table(new)["fingerprint"])
    head = HEAD.pack(SCHEMA_VERSION, time.time())
    async with Redis.from_url(directory.url) as client:
        await client.hset(key, mapping={"vandal": head + b"\xc1\xc1", "newer": bytes([SCHEMA_VERSION + 1]) + head[1:]})
    async with linked(directory, pool, new, "r0") as link:
        await until(lambda: link.counts["malformed"] >= 1 and link.counts["newer_schema"] >= 1)
        assert link.counts["applied"] == 0
    assert table(new)["rows"] == []


def test_engine_refuses_impossible_table(make_engine) -> None:
    engine, fcfs = bandit(make_engine), make_engine(feather={"policy": "Fcfs"})
    assert send_table(engine, fingerprint="0" * 16) == 409
    assert send_table(engine, policy="QLearning") == 409
    assert send_table(engine, rows=[[4, 1, 2, "Perhaps", 1.0, 1.0]]) == 400
    assert send_table(engine, rows=[[4, 1, 2, "Add", -5.0, 1.0]]) == 400
    assert httpx.post(engine.url + PATH, content=b"{", timeout=10).status_code == 400
    assert httpx.post(engine.url + PATH, content=b" " * (2 << 20), timeout=10).status_code == 413
    assert table(engine)["rows"] == []
    assert httpx.get(fcfs.url + PATH, timeout=10).status_code == 404


def test_table_routes_need_token(make_engine, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("engine-token")
    engine = bandit(make_engine, adminTokenFile=str(token))
    assert httpx.get(engine.url + PATH, timeout=10).status_code == 401
    assert httpx.post(engine.url + PATH, json={}, timeout=10).status_code == 401

    async def asked(secret: SecretStr | None) -> LearnedTable | None:
        client = EngineClient(engine.url, secret)
        try:
            return await client.tables()
        finally:
            await client.close()

    assert asyncio.run(asked(None)) is None
    found = asyncio.run(asked(SecretStr("engine-token")))
    assert found is not None
    assert found.policy == "Bandit"


async def test_engine_learns_from_load_and_its_agent_shares_the_table(directory, pool, make_engine) -> None:
    engine = bandit(make_engine, device={"preset": "gpu", "timeScale": 0.02}, maxNumSeqs=8)
    groups = ["".join(f"{group} word{n} " for n in range(200)) for group in range(4)]
    async with linked(directory, pool, engine, "r0") as link:

        async def user(number: int) -> None:
            for turn in range(6):
                prompt = groups[(number + turn) % 4] + f"{number} {turn}"
                await asyncio.to_thread(engine.ask, prompt, max_tokens=12)

        for _ in range(5):  # a busy machine may run a whole round without a shared batch
            await asyncio.gather(*(user(number) for number in range(24)))
            if table(engine)["rows"]:
                break
        assert table(engine)["rows"], "strangers in the batch were at stake"
        await until(lambda: link.counts["sent"] >= 1)
