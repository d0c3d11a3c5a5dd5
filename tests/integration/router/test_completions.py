"""Completions through a running router: requests to engines, answers to clients, streams and usage."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest


async def test_openai_client_gets_streams_and_answers(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        messages = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="tiny", messages=messages)
        assert whole.choices[0].message.content.startswith("one two chat-")
        words = []
        async for part in await client.chat.completions.create(model="tiny", messages=messages, stream=True):
            assert part.usage is None
            words.append(part.choices[0].delta.content)
        assert words[:2] == ["one ", "two "]
        options = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="tiny", messages=messages, stream=True, stream_options=options
        )
        parts = [part async for part in stream]
        assert parts[-1].usage.prompt_tokens_details.cached_tokens == 64
        assert [model.id async for model in await client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=messages)


async def test_engine_gets_body_and_allowed_headers(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    body = kit.chat("hé", temperature=0.5)
    answer = await running.post(
        body,
        authorization="Bearer secret",
        x_request_id="mine-7",
        traceparent="00-aa-bb-01",
        x_data_parallel_rank="3",
        cookie="a=b",
        x_forwarded_for="1.2.3.4",
        connection="keep-alive, x-evil",
    )
    assert (answer.status, answer.headers["x-request-id"]) == (200, "mine-7")
    [seen] = running.engines[0].seen
    assert seen.json == body
    assert seen.headers.keys() == {"host", "content-type", "content-length", "x-request-id", "traceparent"}
    assert seen.headers["x-request-id"] == "mine-7"


async def test_harmful_request_ids_are_replaced(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    answers = [await running.post(kit.chat(), x_request_id=given) for given in ("a b", "x" * 200, "é", "ok")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids[3] == "ok"
    assert len(set(ids)) == 4
    assert not {"a b", "x" * 200, "é"} & set(ids)


async def test_engine_gets_the_pools_key(start: Any, kit: Any, tmp_path: Any) -> None:
    key = tmp_path / "engine.key"
    key.write_text("engine-secret\n")
    running = await start(engines=1, engineApiKeyFile=str(key))
    await running.post(kit.chat(), authorization="Bearer clients")
    assert running.engines[0].seen[0].headers["authorization"] == "Bearer engine-secret"


async def test_raw_completions_take_token_ids(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    for prompt in ("Once upon", [5, 6, 7], ["a", "b"], [[5, 6], [7]]):
        answer = await running.post({"model": "tiny", "prompt": prompt}, path="/v1/completions")
        assert answer.status == 200
    assert [seen.json["prompt"] for seen in running.engines[0].seen] == [
        "Once upon",
        [5, 6, 7],
        ["a", "b"],
        [[5, 6], [7]],
    ]
    assert running.engines[0].seen[0].line == "POST /v1/completions HTTP/1.1"


async def test_chunked_bodies_and_http_1_0_are_served(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    body = json.dumps(kit.chat(stream=True)).encode()
    pieces = b"".join(kit.chunked(body[i : i + 7]) for i in range(0, len(body), 7))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    assert (await running.send(head + pieces + b"0\r\n\r\n")).body.endswith(b"data: [DONE]\n\n")
    reader, writer = await running.connect()
    writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    everything = await asyncio.wait_for(reader.read(), 30)
    assert b"transfer-encoding" not in everything
    assert b"connection: close" in everything
    assert everything.endswith(b"data: [DONE]\n\n")


async def test_pipelined_requests_are_answered_in_order(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    reader, writer = await running.connect()
    ids = [f"p{number}" for number in range(6)]
    writer.write(b"".join(kit.request(kit.chat(stream=n % 2 == 0), x_request_id=i) for n, i in enumerate(ids)))
    async with asyncio.timeout(30):
        assert [(await kit.read_answer(reader)).headers["x-request-id"] for _ in ids] == ids


async def test_many_pipelined_requests_are_all_answered(start: Any, kit: Any) -> None:
    running = await start(engines=1, limits={"maxPipelined": 3})
    reader, writer = await running.connect()
    ids = [f"p{number}" for number in range(50)]
    writer.write(b"".join(kit.request(kit.chat("word " * 200), x_request_id=i) for i in ids))
    async with asyncio.timeout(60):
        answers = [await kit.read_answer(reader) for _ in ids]
    assert [(answer.status, answer.headers["x-request-id"]) for answer in answers] == [(200, i) for i in ids]


async def test_leading_comments_are_not_an_answer(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    go = asyncio.Event()

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(b": ping\n\n") + kit.chunked(b": pi"))
        await go.wait()
        writer.write(kit.chunked(b"ng\n\n" + kit.token("x")) + kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    running.engines[0].answer = answer
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    await kit.until(lambda: running.engines[0].seen)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.2)
    go.set()
    answer_ = await asyncio.wait_for(kit.read_answer(reader), 30)
    assert answer_.body == kit.token("x") + kit.event("[DONE]")


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
@pytest.mark.parametrize("asked", [True, False])
async def test_usage_event_passes_only_if_wanted(start: Any, kit: Any, size: int, asked: bool) -> None:
    running = await start(engines=1)
    words = [kit.token("a"), kit.token('"usage": {"prompt_tokens": 1}'), kit.usage_event(), kit.event("[DONE]")]
    stream = b"".join(words)

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        pieces = b"".join(kit.chunked(stream[i : i + size]) for i in range(0, len(stream), size))
        writer.write(kit.STREAM_HEAD + pieces + b"0\r\n\r\n")

    running.engines[0].answer = answer
    got = await running.post(kit.chat(stream=True, stream_options={"include_usage": asked}))
    assert got.body == (stream if asked else words[0] + words[1] + words[3])
    assert running.router.pool.metrics.actual_hit_tokens == 64
    assert running.router.pool.metrics.prompt_tokens == 100


async def test_usage_of_json_answer_is_read(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    answer = await running.post(kit.chat())
    assert answer.body == running.engines[0].whole().partition(b"\r\n\r\n")[2]
    assert running.router.pool.metrics.actual_hit_tokens == 64
    assert running.router.pool.decider.rate.bytes_per_token == 4.0, "a short prompt teaches nothing"
    await running.post(kit.chat("x" * 1000))
    assert running.router.pool.decider.rate.bytes_per_token > 4.0


async def test_engine_refusal_reaches_client(start: Any, kit: Any) -> None:
    running = await start(engines=2)
    said = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nserver: uvicorn\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(said), said))

    for engine in running.engines:
        engine.answer = answer
    got = await running.post(kit.chat())
    assert (got.status, got.body) == (400, said)
    assert "server" not in got.headers
    assert sum(len(engine.seen) for engine in running.engines) == 1


async def test_answer_may_end_with_connection(start: Any, kit: Any) -> None:
    running = await start(engines=1)

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{}")
        writer.close()

    running.engines[0].answer = answer
    got = await running.post(kit.chat())
    assert (got.status, got.body, got.headers["transfer-encoding"]) == (200, b"{}", "chunked")


async def test_engine_connections_are_reused(start: Any, kit: Any) -> None:
    running = await start(engines=1, timeouts={"probeInterval": 3600})
    for _ in range(5):
        await running.post(kit.chat())
        await running.post(kit.chat(stream=True))
    assert running.engines[0].connections == 1


async def test_second_answer_is_discarded(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    engine = running.engines[0]

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(engine.whole() + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")

    engine.answer = answer
    first = await running.post(kit.chat())
    engine.answer = engine.normally
    second = await running.post(kit.chat())
    assert b"forged" not in first.body + second.body
    assert second.status == 200


async def test_slow_client_pauses_engine(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    sent = 0

    async def answer(seen: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(kit.STREAM_HEAD)
        piece = kit.chunked(kit.token("x" * 60_000))
        for _ in range(800):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        writer.write(b"0\r\n\r\n")

    running.engines[0].answer = answer
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True)))
    await reader.readexactly(1000)
    before = -1
    while sent != before:  # until nothing moves any more
        before = sent
        await asyncio.sleep(0.3)
    assert sent < 30_000_000, "sockets and buffers are full, the rest waits in the engine"
    async with asyncio.timeout(60):
        total = 1000
        while total < 48_000_000:
            data = await reader.read(1 << 20)
            assert data, "the stream went on when the client read on"
            total += len(data)


async def test_several_prompts_are_not_compared_with_prediction(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    metrics = running.router.pool.metrics
    several = {"model": "tiny", "prompt": ["x" * 600] * 50}
    assert (await running.post(several, path="/v1/completions")).status == 200
    assert metrics.actual_hit_tokens == kit.USAGE["prompt_tokens_details"]["cached_tokens"]
    assert metrics.hit_error.count == 0
    assert (await running.post({**several, "prompt": "x" * 600}, path="/v1/completions")).status == 200
    assert metrics.hit_error.count == 1


H2C = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAARAAAAAAAIAAAAA"}


@pytest.mark.parametrize("piece", [50, 100_000])
@pytest.mark.parametrize("as_chunks", [True, False])
async def test_upgrade_offer_is_ignored(start: Any, kit: Any, piece: int, as_chunks: bool) -> None:
    """Java's client offers HTTP/2 in each first request."""
    running = await start(engines=1)
    body = json.dumps(kit.chat("x" * 500)).encode()
    if as_chunks:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**H2C, "transfer-encoding": "chunked"}.items())
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{lines}\r\n"
        first = head.encode() + kit.chunked(body[:100]) + kit.chunked(body[100:]) + b"0\r\n\r\n"
    else:
        first = kit.request(body, **H2C)
    health = kit.request(b"", path="/health", method="GET", connection="upgrade", upgrade="websocket")
    data = first + health + kit.request(kit.chat("second"))
    reader, writer = await running.connect()
    for at in range(0, len(data), piece):
        writer.write(data[at : at + piece])
        await asyncio.sleep(0.001)
    answers = [await kit.read_answer(reader) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [seen.json["messages"][0]["content"] for seen in running.engines[0].seen] == ["x" * 500, "second"]
    assert "upgrade" not in running.engines[0].seen[0].headers


@pytest.mark.parametrize("piece", [50, 100_000])
@pytest.mark.parametrize("connection", ["Upgrade, close", "close, Upgrade, HTTP2-Settings"])
async def test_upgrade_offer_on_last_request_is_ignored(start: Any, kit: Any, piece: int, connection: str) -> None:
    running = await start(engines=1)
    data = kit.request(kit.chat("x" * 500), **{**H2C, "connection": connection})
    reader, writer = await running.connect()
    for at in range(0, len(data), piece):
        writer.write(data[at : at + piece])
        await asyncio.sleep(0.001)
    answer = await kit.read_answer(reader)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await asyncio.wait_for(reader.read(), 30) == b""
    assert [seen.json["messages"][0]["content"] for seen in running.engines[0].seen] == ["x" * 500]


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://router:8000/v1/chat/completions", "/v1/chat/completions"),
        ("HTTPS://router/v1/chat/completions?a=/b", "/v1/chat/completions"),
        ("http://router/v1/completions", "/v1/completions"),
    ],
)
async def test_target_may_have_a_host(start: Any, kit: Any, address: str, path: str) -> None:
    running = await start(engines=1)
    body = kit.chat() if "chat" in path else {"model": "tiny", "prompt": "x"}
    assert (await running.post(body, path=address)).status == 200
    assert running.engines[0].seen[0].line == f"POST {path} HTTP/1.1"
    assert (await running.send(b"GET http://router/health HTTP/1.1\r\nhost: x\r\n\r\n")).status == 200
    for wrong in (b"http://router", b"ftp://router/health", b"http://router?/health"):
        assert (await running.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % wrong)).status in (400, 404)


async def test_requests_succeed_during_key_change(start: Any, kit: Any, tmp_path: Any) -> None:
    """First the routers learn the new key, then each engine is restarted with it; at no time is a request refused."""
    key, previous = tmp_path / "key", tmp_path / "previous"
    key.write_text("old\n")
    running = await start(engines=2, engineApiKeyFile=str(key), previousEngineApiKeyFile=str(previous))
    asked = {engine.name: "old" for engine in running.engines}
    for engine in running.engines:
        engine.answer = _guarded(engine, asked)

    async def served() -> None:
        for _ in range(4):
            assert (await running.post(kit.chat())).status == 200

    await served()
    key.write_text("new\n")
    for _ in range(2):
        running.router.pool.engines.refresh()
    await served()
    asked["chat-0"] = "new"
    await served()
    asked["chat-1"] = "new"
    await served()
    assert {engine.seen[-1].headers["authorization"] for engine in running.engines} == {"Bearer new"}
    assert all(replica.breaker.state.value == "Closed" for replica in running.router.pool.fleet)


async def test_new_router_has_previous_key_from_file(start: Any, kit: Any, tmp_path: Any) -> None:
    key, previous = tmp_path / "key", tmp_path / "previous"
    key.write_text("new\n")
    previous.write_text("old\n")
    running = await start(engines=1, engineApiKeyFile=str(key), previousEngineApiKeyFile=str(previous))
    asked = {"chat-0": "old"}
    running.engines[0].answer = _guarded(running.engines[0], asked)
    assert (await running.post(kit.chat())).status == 200
    assert [seen.headers["authorization"] for seen in running.engines[0].seen] == ["Bearer new", "Bearer old"]
    assert (await running.post(kit.chat())).status == 200
    assert len(running.engines[0].seen) == 3, "it is known which key the engine has"


async def test_engine_with_unknown_key_is_skipped(start: Any, kit: Any, tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_text("ours\n")
    running = await start(engines=2, engineApiKeyFile=str(key))
    asked = {"chat-0": "theirs", "chat-1": "ours"}
    for engine in running.engines:
        engine.answer = _guarded(engine, asked)
    for _ in range(2):
        answer = await running.post(kit.chat())
        assert (answer.status, "chat-1" in answer.body.decode()) == (200, True)


def _guarded(engine: Any, asked: dict[str, str]) -> Any:
    """Answers as vLLM does to a key that it does not know."""

    async def answer(seen: Any, writer: Any) -> None:
        if seen.headers.get("authorization") == f"Bearer {asked[engine.name]}":
            await engine.normally(seen, writer)
        else:
            body = b'{"error":"Unauthorized"}'
            writer.write(b"HTTP/1.1 401 x\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n" + body)

    return answer
