"""Fleets of which a part or all fails: retries are bounded, nothing is lost to a dead replica, outliers are ejected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from plumage_router.admin.status import status_document
from plumage_router.fleet import breaker
from plumage_router.fleet.breaker import BreakerState
from plumage_router.proxy.retry_budget import RESERVE, SHARE, WINDOW

NO_CHECKS = {"probeInterval": 3600}
NEVER = {"failures": 100_000}  # a breaker that stays closed, in tests about other bounds


def _fails(engine: Any, status: int, wrong: Callable[[int], bool] = lambda number: True) -> Any:
    """Answers the status to each request whose number is wrong, else a completion."""

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        if wrong(len(engine.seen)):
            writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)
        else:
            await engine.normally(seen, writer)

    return answer


async def _load(running: Any, kit: Any, requests: int, connections: int) -> Counter[str]:
    """Sends requests, each with its own text, over kept connections. Returns statuses or error codes, counted."""
    outcomes: Counter[str] = Counter()
    numbers: Iterator[int] = iter(range(requests))

    async def client() -> None:
        reader, writer = await running.connect()
        for number in numbers:
            writer.write(kit.request(kit.chat(f"request {number}")))
            answer = await kit.read_answer(reader)
            outcomes["200" if answer.status == 200 else answer.error["code"]] += 1

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(connections)))
    return outcomes


@pytest.mark.parametrize(("status", "most_attempts"), [(500, 2), (503, 4)])
async def test_storm_of_failures_is_bounded(start: Any, kit: Any, status: int, most_attempts: int) -> None:
    running = await start(engines=4, timeouts=NO_CHECKS)
    for engine in running.engines:
        engine.answer = _fails(engine, status)
    requests, connections, began = 2000, 32, monotonic()
    outcomes = await _load(running, kit, requests, connections)
    attempts = sum(len(engine.seen) for engine in running.engines)
    windows = 1 + (monotonic() - began) // (WINDOW - 1)
    bursts = most_attempts * connections
    assert attempts <= (1 + SHARE) * requests + windows * (RESERVE + bursts)
    assert attempts < most_attempts * requests
    assert attempts >= requests + RESERVE, "retries are not off"
    assert outcomes["retry_budget"] > 0.6 * requests
    assert outcomes.total() == requests
    pool = running.router.pool
    assert sum(replica.breaker.outcomes.failed for replica in pool.fleet) == 0, "nothing points to a replica"
    assert pool.metrics.retries.total() == attempts - requests
    refused = []
    for number in range(8):  # each engine may have one free retry at most, as the first of a burst
        while pool.retry_budget.take(monotonic()):
            pass
        answer = await running.post(kit.chat(f"last {number}"))
        if answer.error["code"] == "retry_budget":
            refused.append((answer.status, answer.headers["retry-after"], answer.error["message"]))
    assert refused
    assert {(code, after) for code, after, _ in refused} == {(502, "1")}
    assert all("too many requests are retried" in message for _, _, message in refused)


async def test_replica_of_two_that_dies_loses_no_request(start: Any, kit: Any) -> None:
    """More requests are lost at once than the budget allows to retry."""
    connections = 600
    running = await start(engines=2, timeouts=NO_CHECKS)
    dying, other = running.engines
    die = asyncio.Event()

    async def waits(seen: Any, writer: asyncio.StreamWriter) -> None:
        await die.wait()
        await asyncio.sleep(0.2)
        await other.normally(seen, writer)

    dying.answer = other.answer = waits
    loading = asyncio.create_task(_load(running, kit, 3 * connections, connections))
    await kit.until(lambda: len(dying.seen) + len(other.seen) == connections)
    lost = len(dying.seen)
    await dying.stop()
    die.set()
    other.answer = other.normally
    assert await loading == {"200": 3 * connections}
    assert lost == connections // 2
    assert running.router.pool.metrics.retries.total() >= lost


async def test_replica_that_fails_at_once_does_not_spend_the_budget(start: Any, kit: Any) -> None:
    """It always has the least load, and the other one takes long to answer: no failure is known to be the replica's."""
    running = await start(engines=2, timeouts=NO_CHECKS, policy={"name": "LeastLoad"})
    sick, slow = running.engines
    sick.answer = _fails(sick, 500)

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3)
        await slow.normally(seen, writer)

    slow.answer = slowly
    asking = []
    for number in range(250):
        asking.append(asyncio.create_task(running.post(kit.chat(f"request {number}"))))
        await asyncio.sleep(0.01)
    answers = await asyncio.gather(*asking)
    assert Counter(answer.status for answer in answers) == {200: 250}
    assert len(sick.seen) < RESERVE + SHARE * 250, "else the budget would have been enough for all"


@pytest.mark.interpreted  # compiled modules have the constant's value inside
async def test_often_failing_replica_is_ejected_and_returns(
    start: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "EJECTION", 2.0)
    running = await start(engines=3, timeouts=NO_CHECKS)
    sick, pool = running.engines[0], running.router.pool
    sick.answer = _fails(sick, 500, lambda number: number % 10 in (0, 3, 7))
    replica = pool.fleet.get("chat-0")
    async with asyncio.timeout(60):
        while not pool.outliers.ejections:
            assert set(await _load(running, kit, 60, 4)) == {"200"}, "each failure is retried"
    assert replica.breaker.state is BreakerState.OPEN
    status = status_document(pool, decisions=1)["replicas"][0]
    assert (status["breaker"], status["why"]) == ("Open", "it fails more often than the others")
    assert await running.metric("plumage_router_ejections_total") == 1
    assert await running.metric('plumage_router_replica_breaker_open{replica="chat-0"}') == 1
    before = len(sick.seen)
    assert await _load(running, kit, 60, 4) == {"200": 60}
    assert len(sick.seen) == before
    sick.answer = sick.normally
    async with asyncio.timeout(60):
        while replica.breaker.state is not BreakerState.CLOSED:
            assert await _load(running, kit, 10, 2) == {"200": 10}
            await asyncio.sleep(0.05)
    before = len(sick.seen)
    assert await _load(running, kit, 60, 4) == {"200": 60}
    assert len(sick.seen) > before + 10
    assert pool.outliers.ejections == 1


async def test_fleet_that_fails_everywhere_serves_what_succeeds(start: Any, kit: Any) -> None:
    running = await start(engines=4, timeouts=NO_CHECKS, breaker=NEVER)
    for engine in running.engines:
        engine.answer = _fails(engine, 500, lambda number: number % 3 == 0)
    requests = 3000
    outcomes = await _load(running, kit, requests, 32)
    pool = running.router.pool
    failed = sum(replica.breaker.outcomes.failed for replica in pool.fleet)
    assert failed > requests * SHARE / 2, "the comparison had enough to see"
    pool.outliers.sweep(monotonic() + 3600)
    assert pool.outliers.ejections == 0
    assert len(pool.fleet.candidates(monotonic())) == 4
    assert set(outcomes) <= {"200", "retry_budget", "engines_failed"}
    assert outcomes["200"] > requests * 2 / 3 + SHARE * requests / 2


async def _cut(seen: Any, writer: asyncio.StreamWriter) -> None:
    """The first event of a stream, then nothing."""
    event = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"%x\r\n%b\r\n" % (len(event), event))
    await writer.drain()
    writer.transport.close()


async def test_answer_that_is_cut_off_is_one_failure(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts=NO_CHECKS, breaker=NEVER)
    running.engines[0].answer = _cut
    outcomes = running.router.pool.fleet.get("chat-0").breaker.outcomes
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat("hello", stream=True)))
    await kit.until(lambda: outcomes.failed == 1)
    assert outcomes.total == 1
    running.engines[0].answer = running.engines[0].normally
    assert (await running.post(kit.chat("again"))).status == 200
    assert (outcomes.failed, outcomes.total) == (1, 2)


async def test_failed_trial_takes_no_budget(start: Any, kit: Any) -> None:
    """The failure counts at once (401), so the breaker is open again when the retry is decided."""
    breaker_times = {"failures": 1, "base": 0.05, "cap": 0.05}
    running = await start(engines=2, timeouts=NO_CHECKS, breaker=breaker_times, policy={"name": "LeastLoad"})
    pool, sick = running.router.pool, running.engines[0]
    sick.answer = _fails(sick, 401)
    replica = pool.fleet.get("chat-0")
    for number in range(8):
        assert (await running.post(kit.chat(f"before {number}"))).status == 200
    while pool.retry_budget.take(monotonic()):
        pass
    seen, number = len(sick.seen), 0
    while len(sick.seen) < seen + 3:
        assert replica.breaker.state is not BreakerState.CLOSED
        assert (await running.post(kit.chat(f"after {number}"))).status == 200
        number += 1
        await asyncio.sleep(0.06)


async def test_ejected_replica_serves_what_failed_on_the_other(start: Any, kit: Any) -> None:
    running = await start(engines=2, timeouts=NO_CHECKS, breaker=NEVER)
    pool, other = running.router.pool, running.engines[1]
    ejected = pool.fleet.get("chat-0")
    ejected.breaker.eject(monotonic())
    pool.fleet.changed()
    other.answer = _fails(other, 500, lambda number: number == 1)
    assert [(await running.post(kit.chat(f"request {number}"))).status for number in range(3)] == [200] * 3
    assert [len(engine.seen) for engine in running.engines] == [1, 3]
    assert ejected.breaker.ejected
