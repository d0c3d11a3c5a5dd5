"""A request on which engines fail costs two replicas at most, and other requests nothing."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forks
from support.ports import free_port

from plumage.models import resolve
from plumage_router.fleet.breaker import BreakerState

POISON = "die now"


def _answers(engine: Any, fails: Any) -> Any:
    """Fails on the poison, and answers all else."""

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        await (fails(engine, writer) if POISON.encode() in seen.body else engine.normally(seen, writer))

    return answer


async def _loses(engine: Any, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _answers_500(engine: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")


async def _ends(engine: Any, writer: asyncio.StreamWriter) -> None:
    """As if its process died: nobody listens any more."""
    asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(engine.stop()))
    await asyncio.sleep(3600)


def _poisoned(running: Any) -> list[str]:
    """The engines that were sent the poison."""
    return [e.name for e in running.engines for seen in e.seen if POISON.encode() in seen.body]


def _breakers(running: Any) -> set[BreakerState]:
    return {replica.breaker.state for replica in running.router.pool.fleet}


@pytest.mark.parametrize("fails", [_loses, _answers_500])
@pytest.mark.parametrize("stream", [True, False])
async def test_failing_request_reaches_two_replicas_then_none(start: Any, kit: Any, fails: Any, stream: bool) -> None:
    running = await start(engines=5)
    for engine in running.engines:
        engine.answer = _answers(engine, fails)
    first = await running.post(kit.chat(POISON, stream=stream))
    assert (first.status, first.error["code"]) == (502, "engines_failed")
    assert "retry-after" not in first.headers
    assert len(set(_poisoned(running))) == len(_poisoned(running)) == 2
    for _ in range(4):
        again = await running.post(kit.chat(POISON, stream=stream))
        assert (again.status, again.error["code"]) == (422, "quarantined")
        assert 1 <= int(again.headers["retry-after"]) <= 30
    assert len(_poisoned(running)) == 2
    assert _breakers(running) == {BreakerState.CLOSED}
    assert [(await running.post(kit.chat())).status for _ in range(10)] == [200] * 10
    assert all(any(POISON.encode() not in seen.body for seen in engine.seen) for engine in running.engines)
    page = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    assert "plumage_router_quarantined_bodies 1\n" in page
    assert "plumage_router_quarantines_total 1\n" in page
    assert 'plumage_router_errors_total{code="quarantined"} 4\n' in page


async def test_death_over_kept_connection_counts(start: Any, kit: Any) -> None:
    running = await start(engines=5, timeouts={"probeInterval": 3600})
    for engine in running.engines:
        engine.answer = _answers(engine, _ends)
    assert [(await running.post(kit.chat())).status for _ in range(5)] == [200] * 5, "each keeps a connection now"
    answer = await running.post(kit.chat(POISON))
    assert (answer.status, answer.error["code"]) == (502, "engines_failed")
    assert len(_poisoned(running)) == 2
    assert [(await running.post(kit.chat())).status for _ in range(6)] == [200] * 6


async def test_flood_of_failing_requests_spares_other_requests(start: Any, kit: Any) -> None:
    running = await start(engines=3, breaker={"failures": 3, "base": 3600, "cap": 3600})
    for engine in running.engines:
        engine.answer = _answers(engine, _answers_500)
    bodies = [kit.chat(f"{POISON} {number}") if number % 3 else kit.chat(f"fine {number}") for number in range(120)]
    answers = await asyncio.gather(*(running.post(body) for body in bodies))
    innocent = [answer.status for number, answer in enumerate(answers) if number % 3 == 0]
    assert innocent == [200] * 40
    assert {a.error["code"] for number, a in enumerate(answers) if number % 3} == {"engines_failed"}
    assert _breakers(running) == {BreakerState.CLOSED}


async def test_requests_that_fail_at_unlike_speeds_leave_no_breaker_open(start: Any, kit: Any) -> None:
    """One engine fails at once and is suspected, until the others fail on the same requests."""
    running = await start(engines=3, timeouts={"probeInterval": 3600}, breaker={"base": 3600, "cap": 3600})
    at_once, *_ = running.engines

    def fails(engine: Any) -> Any:
        async def later(engine: Any, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.05 if engine is at_once else 3.0)
            await _answers_500(engine, writer)

        return _answers(engine, later)

    for engine in running.engines:
        engine.answer = fails(engine)
    answers = asyncio.gather(*(running.post(kit.chat(f"{POISON} {number}")) for number in range(36)))
    await kit.until(lambda: _breakers(running) == {BreakerState.OPEN, BreakerState.CLOSED})
    assert {answer.error["code"] for answer in await answers} == {"engines_failed"}
    assert _breakers(running) == {BreakerState.CLOSED}
    assert [(await running.post(kit.chat(f"fine {number}"))).status for number in range(6)] == [200] * 6
    assert all(any(b"fine" in seen.body for seen in engine.seen) for engine in running.engines)


async def test_tenant_whose_requests_fail_engines_leaves_retries_to_others(
    start: Any, kit: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("attacker k-attacker\nother k-other\n")
    running = await start(engines=2, auth={"apiKeysFile": str(keys)}, breaker={"failures": 1000})
    for engine in running.engines:
        engine.answer = _answers(engine, _answers_500)
    pool, codes = running.router.pool, set[str]()
    async with asyncio.timeout(60):
        while "retry_budget" not in codes:
            bodies = [kit.chat(f"{POISON} {len(codes)} {pool.metrics.requests} {number}") for number in range(50)]
            answers = [await running.post(body, authorization="Bearer k-attacker") for body in bodies]
            codes |= {answer.error["code"] for answer in answers}
    running.engines[0].answer = running.engines[0].normally
    running.engines[1].answer = lambda seen, writer: _answers_500(running.engines[1], writer)
    fine = [await running.post(kit.chat(f"fine {n}"), authorization="Bearer k-other") for n in range(10)]
    assert [answer.status for answer in fine] == [200] * 10
    assert any(b"fine" in seen.body for seen in running.engines[1].seen), "some of them were retried"


async def test_failing_requests_keep_the_only_replica_available(start: Any, kit: Any) -> None:
    running = await start(engines=1, breaker={"failures": 3, "base": 3600, "cap": 3600})
    running.engines[0].answer = _answers(running.engines[0], _answers_500)
    for number in range(6):
        answer = await running.post(kit.chat(f"{POISON} {number}"))
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert (await running.post(kit.chat())).status == 200


async def test_body_after_quarantine_reaches_one_replica(start: Any, kit: Any) -> None:
    running = await start(engines=5, quarantine={"seconds": 0.2})
    for engine in running.engines:
        engine.answer = _answers(engine, _loses)
    assert (await running.post(kit.chat(POISON))).error["code"] == "engines_failed"
    quarantine = running.router.pool.quarantine
    await kit.until(lambda: not quarantine.refused(asyncio.get_running_loop().time()))
    assert (await running.post(kit.chat(POISON))).error["code"] == "engines_failed"
    assert len(_poisoned(running)) == 3
    assert quarantine.begun == 2


async def test_stream_that_kills_engines_is_refused_third_time(start: Any, kit: Any) -> None:
    running = await start(engines=5)

    async def half(engine: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("half")))
        await asyncio.sleep(0.01)
        writer.transport.abort()

    for engine in running.engines:
        engine.answer = _answers(engine, half)
    for _ in range(2):
        reader, writer = await running.connect()
        writer.write(kit.request(kit.chat(POISON, stream=True)))
        assert b"half" in await asyncio.wait_for(reader.read(), 30)
    answer = await running.post(kit.chat(POISON, stream=True))
    assert (answer.status, answer.error["code"]) == (422, "quarantined")
    assert len(_poisoned(running)) == 2


async def test_complete_answer_clears_a_body(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    running.engines[0].answer = _answers(running.engines[0], _loses)
    for _ in range(6):
        assert (await running.post(kit.chat(POISON))).status == 200
    assert len(running.router.pool.quarantine.cases) == 0


async def test_leaving_replica_gives_no_strike(start: Any, kit: Any) -> None:
    running = await start(engines=3, timeouts={"probeInterval": 3600})

    async def ended_by_drain(engine: Any, writer: asyncio.StreamWriter) -> None:
        running.write_members({engine.name: "Draining"})
        await kit.until(lambda: running.router.pool.fleet.get(engine.name).leaving)
        writer.transport.abort()

    for engine in running.engines[:2]:
        engine.answer = _answers(engine, ended_by_drain)
    assert (await running.post(kit.chat(POISON))).status == 200
    assert len(_poisoned(running)) == 3
    assert len(running.router.pool.quarantine.cases) == 0


@contextmanager
def _processes(count: int) -> Iterator[tuple[str, list[forks.Fork], list[str]]]:
    """A router's address, and so many engines behind it with their addresses, each a process of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mortal-")))
        engines, members = [], []
        for number in range(count):
            port, path = free_port(), folder / f"engine-{number}.json"
            config = {"model": "tiny", "modelFolder": str(resolve("builtin://tiny-chat")), "port": port,
                      "eventsEndpoint": f"ipc://{folder}/{number}.e", "replayEndpoint": f"ipc://{folder}/{number}.r",
                      "device": {"preset": "gpu", "timeScale": 0.02}, "answerTokens": 4}  # fmt: skip
            path.write_text(json.dumps(config))
            engines.append(_started(stack, "support.mortal_engine", path))
            members.append({"id": f"e-{number}", "url": f"http://127.0.0.1:{port}", "agent": None, "state": "Ready"})
        (folder / "members.json").write_text(json.dumps({"pool": "chat", "replicas": members}))
        port, path = free_port(), folder / "router.json"
        settings = {"pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
                    "membershipFile": str(folder / "members.json"), "listen": {"port": port},
                    "policy": {"name": "RoundRobin"}}  # fmt: skip
        path.write_text(json.dumps(settings))
        _started(stack, "plumage_router", path)
        yield f"http://127.0.0.1:{port}", engines, [member["url"] for member in members]


def _started(stack: ExitStack, module: str, config: Path) -> forks.Fork:
    process = forks.start(module, f"--config={config}")
    stack.callback(process.wait, 60)
    stack.callback(process.kill)
    return process


async def test_request_kills_two_of_four_real_engines(kit: Any) -> None:
    body, poison = kit.chat("hello", max_tokens=4), kit.chat(POISON, max_tokens=4)
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        with _processes(4) as (url, engines, addresses):

            async def metric(name: str) -> list[str]:
                return re.findall(rf"^plumage_router_{name} (\S+)$", (await http.get(f"{url}/metrics")).text, re.M)

            async def all_ready() -> bool:
                """The metric is 1 for each member in state Ready, even before its engine listens."""
                try:
                    for address in addresses:
                        (await http.get(f"{address}/health")).raise_for_status()
                    return await metric(r'replica_ready\{replica="e-\d"\}') == ["1"] * 4
                except httpx.HTTPError:
                    return False

            async with asyncio.timeout(120):
                while not await all_ready():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            completions = f"{url}/v1/chat/completions"
            assert [(await http.post(completions, json=body)).status_code for _ in range(8)] == [200] * 8
            first = await http.post(completions, json=poison)
            assert (first.status_code, first.json()["error"]["code"]) == (502, "engines_failed")
            again = [await http.post(completions, json=poison) for _ in range(5)]
            assert {(a.status_code, a.json()["error"]["code"]) for a in again} == {(422, "quarantined")}
            assert [(await http.post(completions, json=body)).status_code for _ in range(8)] == [200] * 8
            assert sum(engine.poll() is None for engine in engines) == 2
            failing = [await http.post(completions, json=kit.chat(f"fail now {n}")) for n in range(8)]
            assert {a.json()["error"]["code"] for a in failing} == {"engines_failed"}
            assert [(await http.post(completions, json=body)).status_code for _ in range(8)] == [200] * 8
            assert await metric("quarantined_bodies") == ["9"]
