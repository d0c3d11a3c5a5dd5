"""The end of an answer that does not stream is not a first token."""

from __future__ import annotations

import asyncio
from typing import Any


async def test_answer_without_stream_is_not_a_first_token(start: Any, kit: Any) -> None:
    running = await start(engines=2, policy={"name": "Lbgr"})
    pool = running.router.pool
    cold = "\n".join(f"line {number}" for number in range(2000))
    assert (await running.post(kit.chat(cold, stream=True))).status == 200
    before = [replica.backlog.c_miss for replica in pool.decider.policy._replicas]

    async def slowly(engine: Any, seen: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.write(engine.whole())

    for engine in running.engines:
        engine.answer = lambda seen, writer, engine=engine: slowly(engine, seen, writer)
    await asyncio.gather(*(running.post(kit.chat(f"{turn} {cold}")) for turn in range(8)))
    after = [replica.backlog.c_miss for replica in pool.decider.policy._replicas]
    assert all(one < other + 1e-3 for one, other in zip(after, before, strict=True))
    assert all(replica.backlog.requests == 0 for replica in pool.decider.policy._replicas)
    assert all(abs(replica.load.prefill_tokens) < 1e-6 for replica in running.router.pool.fleet)
    metrics = pool.metrics
    assert (metrics.ttft.count, metrics.ttft_error.count, metrics.latency.count) == (1, 1, 9)
    documents = [record.document() for record in pool.decisions.audit.latest(9)]
    assert [document["stream"] for document in documents] == [False] * 8 + [True]
    assert [document["ttft"]["actual"] is None for document in documents] == [True] * 8 + [False]
    assert all(document["latency"]["actual"] > 0 for document in documents)


async def test_refusal_teaches_no_speed(start: Any, kit: Any) -> None:
    running = await start(engines=1, policy={"name": "Lbgr"})
    [engine], policy = running.engines, running.router.pool.decider.policy

    async def refuse(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    engine.answer = refuse
    for stream in (True, False):
        assert (await running.post(kit.chat("x" * 5000, stream=stream))).status == 400
    [replica] = policy._replicas
    assert (replica.backlog.computed, replica.backlog.requests, replica.answers) == (0.0, 0, 0)
    assert running.router.pool.decider.look_up(running.router.pool.reader.read(
        b"/v1/chat/completions", engine.seen[0].body))[0] == {}  # fmt: skip
