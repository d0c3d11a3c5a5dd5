"""Requests of a pool without a replica wait within bounds, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from plumage.fleet_report import RouterReport
from plumage_router.admin.fleet_report import fleet_report
from plumage_router.server import TURN_AWAY

HOLD = {"maxRequests": 20, "maxSeconds": 60}


def report(running: Any) -> RouterReport:
    return fleet_report(running.router.pool)


async def test_requests_wait_for_pool_at_zero(start: Any, kit: Any) -> None:
    running = await start(engines=0, hold=HOLD)
    asking = [asyncio.create_task(running.post(kit.chat(f"number {n}", stream=n % 2 == 0))) for n in range(20)]
    await kit.until(lambda: report(running).waiting == 20)
    load = report(running)
    assert (load.wanting, load.replicas) == (20, [])
    queue = running.router.pool.wait_queue
    assert (queue.total, queue.refused) == (20, 0)

    engine = kit.Engine("chat-0")
    await engine.start()
    running.engines.append(engine)
    running.write_members({"chat-0": "Warming"})
    await kit.until(lambda: len(report(running).replicas) == 1)
    assert report(running).waiting == 20, "a replica that warms takes none"
    running.write_members()
    answers = await asyncio.gather(*asking)

    assert [answer.status for answer in answers] == [200] * 20
    assert sorted(seen.json["messages"][0]["content"] for seen in engine.seen) == sorted(
        f"number {n}" for n in range(20)
    )
    after = report(running)
    assert (after.waiting, queue.wait.count, after.requests) == (0, 20, 20)


async def test_full_or_late_request_gets_retry_after(start: Any, kit: Any) -> None:
    running = await start(engines=0, hold={"maxRequests": 1, "maxSeconds": 0.5})
    first = asyncio.create_task(running.post(kit.chat()))
    await kit.until(lambda: report(running).waiting == 1)
    second = await running.post(kit.chat())
    for answer in (second, await first):
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.error["code"] == "no_replica"
        assert "the pool has no replicas" in answer.error["message"]
    assert (running.router.pool.wait_queue.refused, report(running).waiting) == (2, 0)


async def test_aborted_request_leaves_queue(start: Any, kit: Any) -> None:
    running = await start(engines=0, hold=HOLD)
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat()))
    await kit.until(lambda: report(running).waiting == 1)
    writer.transport.abort()
    await kit.until(lambda: report(running).waiting == 0)
    assert not running.router.pool.in_flight
    assert running.router.pool.body_memory.used == 0


async def test_requests_wait_while_replicas_are_away(start: Any, kit: Any) -> None:
    """The last engine is gone and membership does not know yet: the request waits for another one, also while the
    breaker lets requests try the old one again."""
    running = await start(engines=1, hold=HOLD, breaker={"base": 0.05, "cap": 0.05})
    await running.engines[0].stop()
    asking = asyncio.create_task(running.post(kit.chat()))
    await kit.until(lambda: report(running).waiting == 1)
    await asyncio.sleep(0.5)
    assert report(running).waiting == 1
    fresh = kit.Engine("chat-1")
    await fresh.start()
    running.engines[:] = [fresh]
    running.write_members()
    assert (await asking).status == 200


async def test_stop_turns_waiting_requests_away(start: Any, kit: Any) -> None:
    running = await start(engines=0, hold=HOLD)
    asking = asyncio.create_task(running.post(kit.chat()))
    await kit.until(lambda: report(running).waiting == 1)
    await running.router.stop(drain_seconds=2 * TURN_AWAY)
    answer = await asking
    assert answer.status == 503
    assert "shutting down" in answer.error["message"]
    assert answer.headers["connection"] == "close"


async def test_router_with_queue_is_ready_without_replica(start: Any, kit: Any) -> None:
    waiting, refusing = await start(engines=0, hold=HOLD), await start(engines=0)
    health = kit.request(b"", path="/health", method="GET")
    assert (await waiting.send(health)).status == 200
    assert (await refusing.send(health)).status == 503
    assert (await refusing.send(kit.request(b"", path="/healthz", method="GET"))).status == 200
    answer = await refusing.post(kit.chat())
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_leaving_router_serves_without_keep_alive(start: Any, kit: Any) -> None:
    running = await start(timeouts={"leave": 60})
    leaving = asyncio.create_task(running.router.leave())
    await kit.until(lambda: running.router.pool.leaving)
    assert (await running.send(kit.request(b"", path="/health", method="GET"))).status == 503
    answer = await running.post(kit.chat())
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    leaving.cancel()
