"""Engines that fail: a request is retried before its first body byte, and cut after it."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import openai
import pytest

from plumage_router.fleet.breaker import BreakerState
from plumage_router.http.upstream import ConnectionPool, UpstreamConnection


async def _dies(seen: Any, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_gone_engine_is_retried_elsewhere(start: Any, kit: Any) -> None:
    running = await start(engines=3)
    await running.engines[1].stop()
    answers = [await running.post(kit.chat(stream=n % 2 == 0)) for n in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    assert running.router.pool.metrics.retries["connect_refused"] == 1, "its breaker opened at once"


async def test_connection_that_ends_as_it_opens_is_retried(
    start: Any, kit: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has ended before the router may send on it."""
    running = await start(engines=2)
    begin, ended = ConnectionPool._begin_connecting, 0

    async def ends_first(pool: ConnectionPool) -> tuple[asyncio.Transport, UpstreamConnection]:
        nonlocal ended
        made = await begin(pool)
        if not ended:
            ended = 1
            made[0].abort()
            await kit.until(lambda: made[1] not in pool._all)
        return made

    monkeypatch.setattr(ConnectionPool, "_begin_connecting", ends_first)
    assert (await running.post(kit.chat())).status == 200
    assert running.router.pool.metrics.retries["connect_failed"] == ended == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_death_before_first_byte_is_retried(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    running.engines[0].answer = _dies
    answers = [await running.post(kit.chat()) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.json["choices"][0]["message"]["content"] for answer in answers} == {"one two chat-1"}


async def test_headers_alone_are_retried(start: Any, kit: Any) -> None:
    running = await start(engines=2)

    async def accepts_and_dies(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(b": ping\n\n"))
        await asyncio.sleep(0.05)
        writer.transport.abort()

    running.engines[0].answer = accepts_and_dies
    for _ in range(2):
        answer = await running.post(kit.chat(stream=True))
        assert answer.status == 200
        assert b"chat-1" in answer.body


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_server_error_is_retried(start: Any, kit: Any, status: int) -> None:
    running = await start(engines=2)

    async def fails(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 12\r\n\r\nTraceback..." % status)

    running.engines[0].answer = fails
    for _ in range(2):
        assert (await running.post(kit.chat())).status == 200
    running.engines[1].answer = fails
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed" if status == 503 else "engines_failed")
    assert b"Traceback" not in answer.body


async def test_malformed_answer_is_retried(start: Any, kit: Any) -> None:
    running = await start(engines=2)

    async def garbage(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"I am a teapot\r\n\r\n")

    running.engines[0].answer = garbage
    for _ in range(2):
        assert (await running.post(kit.chat())).status == 200


async def test_stream_is_cut_after_first_byte_without_retry(start: Any, kit: Any) -> None:
    running = await start(engines=2)

    async def half(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("half")))
        await asyncio.sleep(0.05)
        writer.transport.abort()

    for engine in running.engines:
        engine.answer = half
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    everything = await asyncio.wait_for(reader.read(), 30)
    assert everything.startswith(b"HTTP/1.1 200 ")
    assert everything.count(b"half") == 1
    assert not everything.endswith(b"0\r\n\r\n"), "a cut stream must not look whole"
    error = json.loads(everything.rpartition(b"data: ")[2].partition(b"\n\n")[0])
    assert error["error"]["code"] == "truncated"
    assert sum(len(engine.seen) for engine in running.engines) == 1
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello"}]
        stream = await client.chat.completions.create(model="tiny", messages=messages, stream=True)
        assert (await anext(stream)).choices[0].delta.content == "half"
        with pytest.raises(openai.APIError):
            await anext(stream)


async def test_events_and_end_of_one_read_arrive_whole(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    first, last = kit.token("one"), [kit.token("two"), kit.token("three"), b"data: [DONE]\n\n"]

    async def at_once(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(first))
        await asyncio.sleep(0.05)
        writer.write(b"".join(map(kit.chunked, last)) + b"0\r\n\r\n")

    running.engines[0].answer = at_once
    for _ in range(2):  # the engine's connection is used again
        answer = await running.post(kit.chat(stream=True))
        assert (answer.status, answer.body) == (200, first + b"".join(last))
    assert [record.outcome for record in running.router.pool.decisions.audit.latest(2)] == ["Finished"] * 2


async def test_events_before_a_broken_chunk_arrive(start: Any, kit: Any) -> None:
    running = await start(engines=1)

    async def breaks(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("one")) + kit.chunked(kit.token("two")) + b"no size\r\n")

    running.engines[0].answer = breaks
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    everything = await asyncio.wait_for(reader.read(), 30)
    assert kit.token("one") + kit.token("two") in everything
    error = json.loads(everything.rpartition(b"data: ")[2].partition(b"\n\n")[0])
    assert error["error"]["code"] == "truncated"


async def test_broken_json_answer_is_cut(start: Any, kit: Any) -> None:
    running = await start(engines=1)

    async def half(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
        await asyncio.sleep(0.05)
        writer.transport.abort()

    running.engines[0].answer = half
    with pytest.raises(asyncio.IncompleteReadError):
        await running.post(kit.chat())


async def test_missing_replica_is_503(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    running.write_members({"chat-0": "Draining"})
    await kit.until(lambda: not running.router.pool.fleet.candidates(0.0))
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (503, "no_replica")
    assert "draining" in answer.error["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert (await running.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")).status == 503


async def test_attempts_are_bounded(start: Any, kit: Any) -> None:
    running = await start(engines=5, limits={"maxAttempts": 3}, timeouts={"probeInterval": 3600})
    for engine in running.engines:
        await engine.stop()
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert "3 replicas" in answer.error["message"]


async def test_client_abort_stops_engine(start: Any, kit: Any) -> None:
    running = await start(engines=1)

    async def endless(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD)
        while True:
            writer.write(kit.chunked(kit.token("x")))
            await asyncio.sleep(0.01)

    engine = running.engines[0]
    engine.answer = endless
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    await reader.readuntil(b"data: ")
    writer.transport.abort()
    await asyncio.wait_for(engine.closed.wait(), 30)
    await kit.until(lambda: not running.router.pool.in_flight)
    assert running.router.pool.metrics.aborted == 1
    assert running.router.pool.fleet.loads[0].routed == 0
    totals = running.router.pool.fleet.get("chat-0").totals
    assert (totals.routed, totals.finished, totals.failed, totals.abandoned) == (1, 0, 0, 1), "no fault of the replica"


async def test_client_abort_before_first_byte_stops_engine(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    engine = running.engines[0]

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    engine.answer = thinks
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat()))
    await kit.until(lambda: engine.seen)
    writer.close()
    await asyncio.wait_for(engine.closed.wait(), 30)
    assert running.router.pool.fleet.get("chat-0").breaker.state is BreakerState.CLOSED


async def test_stale_connection_is_not_a_failure(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"probeInterval": 3600})
    engine = running.engines[0]
    await running.post(kit.chat())

    async def closes_old_connections(seen: Any, writer: asyncio.StreamWriter) -> None:
        engine.answer = engine.normally
        writer.transport.abort()

    engine.answer = closes_old_connections
    assert (await running.post(kit.chat())).status == 200
    assert running.router.pool.metrics.retries.total() == 0


async def test_stalled_engine_loses_unanswered_requests(start: Any, kit: Any) -> None:
    running = await start(engines=2)

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    running.engines[0].answer = thinks
    pending = asyncio.ensure_future(running.post(kit.chat()))
    await kit.until(lambda: running.engines[0].seen)
    running.router.pool.fleet.get("chat-0").stalled = True  # as its agent says through the directory
    running.router.pool.fleet.changed()
    answer = await asyncio.wait_for(pending, 30)
    assert (answer.status, len(running.engines[1].seen)) == (200, 1)
    await asyncio.wait_for(running.engines[0].closed.wait(), 30)


async def test_silent_request_gets_two_replicas(start: Any, kit: Any) -> None:
    running = await start(engines=4, timeouts={"probeInterval": 3600})

    async def thinks(seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    for engine in running.engines:
        engine.answer = thinks
    pending = asyncio.ensure_future(running.post(kit.chat()))
    for number in (1, 2):
        await kit.until(lambda number=number: sum(len(engine.seen) for engine in running.engines) == number)
        asked = next(engine for engine in running.engines if engine.seen and not engine.closed.is_set())
        running.router.pool.fleet.get(asked.name).healthy = False  # as the router's own health check says
        running.router.pool.fleet.changed()
        if number == 1:
            await asyncio.wait_for(asked.closed.wait(), 30)
    answer = await asyncio.wait_for(pending, 30)
    assert (answer.status, answer.error["code"]) == (502, "upstream_silent")
    assert "its health check fails" in answer.error["message"]
    assert "retry-after" not in answer.headers
    outcomes = [replica.breaker.outcomes.total for replica in running.router.pool.fleet]
    assert outcomes == [0] * 4, "the request may be the cause"
    assert sum(len(engine.seen) for engine in running.engines) == 2


async def test_connect_timeout_is_retried(start: Any, kit: Any) -> None:
    """A listening socket whose queue is full: connecting hangs."""
    running = await start(engines=1, timeouts={"connect": 0.2, "probeInterval": 3600})
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        hanging = kit.Engine("chat-9")
        hanging.port = port
        running.engines.insert(0, hanging)
        running.write_members()
        await kit.until(lambda: running.router.pool.fleet.get("chat-9"))
        for _ in range(4):
            assert (await running.post(kit.chat())).status == 200
        for filler in fillers:
            filler.close()
    running.engines.remove(hanging)


async def test_members_may_change(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    added = kit.Engine("chat-1")
    await added.start()
    running.engines.append(added)
    running.write_members()
    await kit.until(lambda: len(running.router.pool.fleet) == 2)
    for _ in range(4):
        await running.post(kit.chat())
    assert len(added.seen) == 2
    running.engines.pop(0)
    gone_port = running.router.pool.fleet.get("chat-0").member.url
    running.write_members()
    await kit.until(lambda: len(running.router.pool.fleet) == 1)
    assert (await running.post(kit.chat())).json["choices"][0]["message"]["content"] == "one two chat-1"
    assert gone_port != running.router.pool.fleet.get("chat-1").member.url


async def test_removed_member_finishes_answers(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    go = asyncio.Event()

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("x")))
        await go.wait()
        writer.write(kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    leaving = running.engines[0]
    leaving.answer = slowly
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    await reader.readuntil(b"data: ")
    running.engines.pop(0)
    running.write_members()
    await kit.until(lambda: len(running.router.pool.fleet) == 1)
    go.set()
    assert b"[DONE]" in await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 30)


async def test_invalid_membership_file_changes_nothing(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    for text in ("{", '{"pool":"other","replicas":[]}', '{"pool":"chat","replicas":[{"id":"a","url":"ftp://x"}]}'):
        running.members.write_text(text)
        await kit.until(lambda: running.router.pool.membership.error)
        assert (await running.post(kit.chat())).status == 200
        running.router.pool.membership.error = None
    running.members.unlink()
    await kit.until(lambda: running.router.pool.membership.error)
    assert (await running.post(kit.chat())).status == 200
    running.write_members()
    await kit.until(lambda: running.router.pool.membership.error is None)


@pytest.mark.parametrize("part", ["policy", pytest.param("record", marks=pytest.mark.interpreted), "send"])
@pytest.mark.parametrize("attempt", [1, 2])
async def test_internal_error_is_reported_and_cleaned_up(
    start: Any, kit: Any, part: str, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(engines=2)
    pool, calls = running.router.pool, []
    if attempt == 2:
        running.engines[0].answer = running.engines[1].answer = _dies
    target, name = {
        "policy": (pool.decider.policy, "choose"),
        "record": (pool.decisions, "add"),
        "send": (pool.engines.keys, "of"),
    }[part]
    right = getattr(target, name)

    def wrong(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) == attempt:
            raise ZeroDivisionError
        return right(*args, **more)

    monkeypatch.setattr(target, name, wrong)
    answer = await running.post(kit.chat())
    if part == "send":  # it is found out when the connection is there: as good as a replica that can't be reached
        assert answer.status == (200 if attempt == 1 else 502)
    else:
        assert (answer.status, answer.error["code"]) == (500, "internal")
    assert not pool.in_flight
    assert [load.routed for load in running.router.pool.fleet.candidates(1e18)] == [0, 0]
    monkeypatch.undo()
    running.engines[0].answer, running.engines[1].answer = (engine.normally for engine in running.engines)
    for replica in running.router.pool.fleet:
        replica.breaker.succeeded()
    running.router.pool.fleet.changed()
    assert (await running.post(kit.chat())).status == 200


async def test_invalid_host_is_unreachable_replica(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"probeInterval": 3600})
    document = json.loads(running.members.read_text())
    document["replicas"] = [{"id": "odd", "url": f"http://{'a' * 64}.example:80"}]
    running.members.write_text(json.dumps(document))
    await kit.until(lambda: running.router.pool.fleet.get("odd"))
    answer = await running.post(kit.chat())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
