"""Requests wait in the router while no replica has room: by class, tenant and deadline, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plumage.queueing.start_window import LEAST
from plumage_router.admin.fleet_report import fleet_report


def flow(*classes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings with a window that does not grow in a test: starts fade at once."""
    return {
        "maxRequests": 1000,
        "maxSeconds": 60,
        "engineQueue": 0.00001,
        "order": "Deadline",
        "classes": list(classes) or [{"name": "default", "weight": 1}],
        **more,
    }


def texts_at(engine: Any) -> list[str]:
    return [seen.json["messages"][0]["content"] for seen in engine.seen]


class Gate:
    """An engine that answers the request at its head when a test lets it."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._turn = asyncio.Semaphore(0)
        self._order = asyncio.Lock()
        engine.answer = self._answer

    async def _answer(self, seen: Any, writer: asyncio.StreamWriter) -> None:
        async with self._order:
            await self._turn.acquire()
        await self.engine.normally(seen, writer)

    def open(self, times: int = 1) -> None:
        for _ in range(times):
            self._turn.release()

    @property
    def seen(self) -> list[str]:
        return texts_at(self.engine)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "keys").write_text("alice key-a\nbob key-b\n")
    return {"apiKeysFile": str(tmp_path / "keys")}


def ask(running: Any, kit: Any, text: str, **headers: str) -> asyncio.Task[Any]:
    return asyncio.create_task(running.post(kit.chat(text, stream=True, max_tokens=3), **headers))


def waiting(running: Any) -> int:
    return len(running.router.pool.flow_control)


async def fill(running: Any, kit: Any, **headers: str) -> list[asyncio.Task[Any]]:
    """Requests that take all room of the only replica."""
    first = [ask(running, kit, f"first {n}", **headers) for n in range(LEAST)]
    await kit.until(lambda: sum(one.split()[0] == "first" for one in texts_at(running.engines[0])) == LEAST)
    return first


async def test_requests_without_room_wait_in_the_router(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = [ask(running, kit, f"number {n}") for n in range(20)]
    await kit.until(lambda: waiting(running) == 20 - LEAST)
    assert len(gate.seen) == LEAST
    report = fleet_report(running.router.pool)
    assert (report.queued, report.waiting, report.in_flight) == (20 - LEAST, 0, 20)

    gate.open()
    await kit.until(lambda: len(gate.seen) == LEAST + 1)
    assert waiting(running) == 20 - LEAST - 1
    gate.open(19)
    assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * 20
    assert sorted(gate.seen) == sorted(f"number {n}" for n in range(20))
    after = fleet_report(running.router.pool)
    assert (after.queued, after.queue_wait.count) == (0, 20)


async def test_classes_share_by_weight(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow({"name": "chat", "weight": 3}, {"name": "batch", "weight": 1}))
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    for n in range(40):
        asking += [ask(running, kit, f"batch {n}", x_plumage_class="batch"), ask(running, kit, f"chat {n}")]
    await kit.until(lambda: waiting(running) == 80)
    for n in range(40):
        gate.open()
        await kit.until(lambda n=n: len(gate.seen) == LEAST + 1 + n)
    counts = Counter(text.split()[0] for text in gate.seen[LEAST:])
    assert counts["chat"] == pytest.approx(30, abs=4), "the first ones cost more than expected"
    by_class = {entry["class"]: entry for entry in running.router.pool.flow_control.document()}
    assert by_class["chat"]["waiting"] + by_class["batch"]["waiting"] == 40
    assert by_class["chat"]["passed"] == LEAST + counts["chat"]
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.parametrize(
    ("order", "expected"), [("SloScore", ["known", "new", "other"]), ("Deadline", ["new", "known", "other"])]
)
async def test_cached_prompt_goes_before_new_ones(start: Any, kit: Any, order: str, expected: list[str]) -> None:
    running = await start(engines=1, flowControl=flow(order=order))
    gate = Gate(running.engines[0])
    texts = {name: f"{name} " + f"about {name} " * 400 for name in ("known", "new", "other")}
    gate.open()
    assert (await ask(running, kit, texts["known"])).status == 200
    asking = await fill(running, kit)
    for count, name in enumerate(("new", "known", "other"), start=1):
        asking.append(ask(running, kit, texts[name] + "?"))
        await kit.until(lambda count=count: waiting(running) == count)
    gate.open(10)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
    assert [text.split()[0] for text in gate.seen[1 + LEAST :]] == expected


async def test_tenants_of_a_class_take_turns(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, flowControl=flow(), auth=keys)
    gate = Gate(running.engines[0])
    alice, bob = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
    asking = await fill(running, kit, **alice)
    asking += [ask(running, kit, f"alice {n}", **alice) for n in range(40)]
    await kit.until(lambda: waiting(running) == 40)
    asking += [ask(running, kit, f"bob {n}", **bob) for n in range(5)]
    await kit.until(lambda: waiting(running) == 45)
    gate.open(12)
    await kit.until(lambda: len(gate.seen) == LEAST + 12)
    names = [text.split()[0] for text in gate.seen[LEAST:]]
    assert names.count("bob") == 5, names
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_earlier_deadline_goes_first(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    for seconds in (50, 20, 40, 30):
        asking.append(ask(running, kit, f"in {seconds}", x_plumage_ttft_milliseconds=str(1000 * seconds)))
        await kit.until(lambda: waiting(running) == len(asking) - LEAST)
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
    assert gate.seen[LEAST:] == ["in 20", "in 30", "in 40", "in 50"]


async def test_request_that_waits_too_long_gets_429(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow({"name": "chat", "weight": 1, "objective": 0.3}))
    gate = Gate(running.engines[0])
    first = await fill(running, kit)
    late = await ask(running, kit, "late")
    assert (late.status, late.error["code"]) == (429, "objective_missed")
    assert int(late.headers["retry-after"]) >= 1
    assert "the wait is about" in late.error["message"]
    assert (waiting(running), len(gate.seen)) == (0, LEAST)
    gate.open(LEAST)
    assert {answer.status for answer in await asyncio.gather(*first)} == {200}, "those in the engine are not touched"


async def test_request_that_can_not_meet_its_objective_gets_429_at_once(start: Any, kit: Any) -> None:
    """The speed is known from a second of waiting requests: about ten a second, so 300 take half a minute."""
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = [ask(running, kit, f"number {n}", x_plumage_ttft_milliseconds="20000") for n in range(300)]
    await kit.until(lambda: waiting(running) == 300 - LEAST)
    for _ in range(10):
        gate.open()
        await asyncio.sleep(0.1)
    refused = await ask(running, kit, "soon", x_plumage_ttft_milliseconds="19500")
    assert (refused.status, refused.error["code"]) == (429, "objective_missed")
    assert int(refused.headers["retry-after"]) > 20, "the expected wait, so it did not wait until its deadline"
    asking.append(ask(running, kit, "later", x_plumage_ttft_milliseconds="50000"))
    await kit.until(lambda: waiting(running) == 300 - LEAST - 10 + 1)
    gate.open(400)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_full_queue_refuses(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow(maxRequests=2))
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    asking += [ask(running, kit, f"waits {n}") for n in range(2)]
    await kit.until(lambda: waiting(running) == 2)
    refused = await ask(running, kit, "too many")
    assert (refused.status, refused.headers["retry-after"], refused.error["code"]) == (429, "1", "queue_full")
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
    page = (await running.send(kit.request(b"", path="/metrics", method="GET"))).body.decode()
    assert 'plumage_router_queue_refused_total{reason="full"} 1' in page
    assert f'plumage_router_queue_passed_total{{class="default"}} {LEAST + 2}' in page
    assert 'plumage_router_queue_requests{class="default"} 0' in page


async def test_full_queue_makes_room_for_a_class_with_fewer_places(start: Any, kit: Any) -> None:
    classes = {"name": "chat", "weight": 4}, {"name": "batch", "weight": 1}
    running = await start(engines=1, flowControl=flow(*classes, maxRequests=4))
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    batch = [ask(running, kit, f"batch {n}", x_plumage_class="batch") for n in range(4)]
    await kit.until(lambda: waiting(running) == 4)
    asking.append(ask(running, kit, "chat"))
    await kit.until(lambda: any(one.done() for one in batch))
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
    statuses = sorted([answer.status for answer in await asyncio.gather(*batch)])
    assert statuses == [200, 200, 200, 429]


async def test_client_that_leaves_frees_its_place(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat("left", stream=True)))
    await kit.until(lambda: waiting(running) == 1)
    asking.append(ask(running, kit, "stays"))
    await kit.until(lambda: waiting(running) == 2)
    writer.transport.abort()
    await kit.until(lambda: waiting(running) == 1)
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
    assert gate.seen[LEAST:] == ["stays"]
    assert not running.router.pool.flow_control._charged


@pytest.mark.parametrize(
    ("headers", "status", "code", "message"),
    [
        ({"x_plumage_class": "gold"}, 400, "invalid_header", "there is no class 'gold'; there are chat, staff"),
        ({"x_plumage_class": "staff"}, 403, "class_refused", "The class staff is not open to this key."),
        ({"x_plumage_ttft_milliseconds": "soon"}, 400, "invalid_header", "must be a whole number from 10 to 3600000"),
        ({"x_plumage_ttft_milliseconds": "9"}, 400, "invalid_header", "must be a whole number from 10 to 3600000"),
    ],
)
async def test_wrong_header_is_refused(
    start: Any, kit: Any, keys: Any, headers: dict[str, str], status: int, code: str, message: str
) -> None:
    open_to_all = {"name": "chat", "weight": 1, "tenants": ["*"]}
    classes = open_to_all, {"name": "staff", "weight": 1, "tenants": ["bob"]}
    running = await start(engines=1, flowControl=flow(*classes), auth=keys)
    answer = await ask(running, kit, "hello", authorization="Bearer key-a", **headers)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert message in answer.error["message"]
    assert (await ask(running, kit, "hi", authorization="Bearer key-b", x_plumage_class="staff")).status == 200


async def test_waiting_requests_go_to_the_replica_that_is_left(start: Any, kit: Any) -> None:
    running = await start(engines=2, flowControl=flow())
    gates = [Gate(engine) for engine in running.engines]
    asking = [ask(running, kit, f"number {n}") for n in range(2 * LEAST + 10)]
    await kit.until(lambda: waiting(running) == 10)
    await running.engines[0].stop()
    running.engines.pop(0)
    running.write_members()
    gates[1].open(100)
    assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * len(asking)


async def test_waiting_requests_stay_while_the_only_replica_is_away(start: Any, kit: Any) -> None:
    """Its breaker opens for a moment. Then it gets a window of requests, and not all that waited."""
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    asking += [ask(running, kit, f"waits {n}") for n in range(20)]
    await kit.until(lambda: waiting(running) == 20)
    running.write_members({"chat-0": "Warming"})
    await kit.until(lambda: not running.router.pool.fleet.candidates(0.0))
    gate.open(LEAST)
    await asyncio.gather(*asking[:LEAST])
    assert waiting(running) == 20
    assert fleet_report(running.router.pool).waiting == 20, "a pool at zero must wake for them"
    running.write_members()
    await kit.until(lambda: len(gate.seen) == 2 * LEAST)
    assert waiting(running) == 20 - LEAST
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_answers_in_one_piece_go_on_without_an_answer(start: Any, kit: Any) -> None:
    """Their first token is due at its predicted time, also while no request is routed."""
    running = await start(engines=1, flowControl=flow(), policy={"name": "Lbgr"})
    gate = Gate(running.engines[0])
    asking = [asyncio.create_task(running.post(kit.chat(f"short {n}", max_tokens=3))) for n in range(30)]
    await kit.until(lambda: len(gate.seen) == 30)
    gate.open(30)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_class_may_be_removed_while_its_request_waits_for_a_replica(start: Any, kit: Any) -> None:
    hold = {"maxRequests": 20, "maxSeconds": 60}
    running = await start(
        engines=0, hold=hold, flowControl=flow({"name": "a", "weight": 1}, {"name": "b", "weight": 1})
    )
    asking = ask(running, kit, "hello", x_plumage_class="b")
    await kit.until(lambda: fleet_report(running.router.pool).waiting == 1)
    pool = running.router.pool
    only = pool.config.flow_control.model_copy(update={"classes": pool.config.flow_control.classes[:1]})
    pool.reconfigure(pool.config.model_copy(update={"flow_control": only}))
    engine = kit.Engine("chat-0")
    await engine.start()
    running.engines.append(engine)
    running.write_members()
    assert (await asking).status == 200


async def test_new_replica_takes_what_waits(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = [ask(running, kit, f"number {n}") for n in range(LEAST + 5)]
    await kit.until(lambda: waiting(running) == 5)
    fresh = kit.Engine("chat-9")
    await fresh.start()
    running.engines.append(fresh)
    running.write_members()
    await kit.until(lambda: len(fresh.seen) == 5)
    assert waiting(running) == 0
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_stop_turns_waiting_requests_away(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    first = await fill(running, kit)
    asking = ask(running, kit, "waits")
    await kit.until(lambda: waiting(running) == 1)
    stopping = asyncio.create_task(running.router.stop(drain_seconds=5))
    answer = await asking
    assert (answer.status, answer.error["code"]) == (503, "no_replica")
    assert "shutting down" in answer.error["message"]
    gate.open(100)
    assert {one.status for one in await asyncio.gather(*first)} == {200}
    await stopping


async def test_flow_control_can_be_switched_off_while_requests_wait(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = [ask(running, kit, f"number {n}") for n in range(LEAST + 5)]
    await kit.until(lambda: waiting(running) == 5)
    pool = running.router.pool
    pool.reconfigure(pool.config.model_copy(update={"flow_control": None}))
    await kit.until(lambda: len(gate.seen) == LEAST + 5)
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_requests_that_use_no_device_do_not_wait(start: Any, kit: Any) -> None:
    running = await start(engines=1, flowControl=flow())
    gate = Gate(running.engines[0])
    asking = await fill(running, kit)
    running.engines[0].answer = running.engines[0].normally
    body = {"model": "tiny", "prompt": "hello"}
    assert (await running.send(kit.request(body, path="/tokenize"))).status == 200
    assert waiting(running) == 0
    gate.open(100)
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
