"""Keys are checked before bodies; tenants share the memory for bodies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

LENGTH = 1_000_000
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "keys").write_text("acme key-a\nglobex key-b\n")
    return {"apiKeysFile": str(tmp_path / "keys")}


def head(key: str | None = None, *more: str) -> bytes:
    secret = [f"authorization: Bearer {key}"] if key else []
    return (HEAD + "".join(f"{line}\r\n" for line in (*secret, *more)) + "\r\n").encode()


async def read(kit: Any, reader: asyncio.StreamReader) -> Any:
    async with asyncio.timeout(30):
        return await kit.read_answer(reader)


@pytest.mark.parametrize("more", [("content-length: 1000000",), ("transfer-encoding: chunked",),
                                  ("content-length: 1000000", "expect: 100-continue")])  # fmt: skip
async def test_missing_key_is_refused_before_body(start: Any, kit: Any, keys: Any, more: tuple[str, ...]) -> None:
    running = await start(engines=1, auth=keys)
    reader, writer = await running.connect()
    writer.write(head(None, *more))
    answer = await read(kit, reader)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), "and no 100 Continue came before"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    assert running.router.pool.body_memory.used == 0


async def test_unread_bodies_are_not_kept(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys)
    reader, writer = await running.connect()
    writer.write(b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
    assert (await read(kit, reader)).status == 401
    open_pool = await start(engines=1)
    reader, writer = await open_pool.connect()
    writer.write(b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * (LENGTH - 1))
    [connection] = open_pool.router.pool.connections
    await kit.until(lambda: connection._parser.request is not None and connection._parser.request.size == LENGTH - 1)
    assert open_pool.router.pool.body_memory.used == 0
    writer.write(b"x")
    assert (await read(kit, reader)).status == 405


async def test_clients_without_key_take_no_memory(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, limits={"maxBufferedBytes": 4_000_000})
    body = b"x" * (LENGTH - 1)
    for _ in range(33):
        _, writer = await running.connect()
        writer.write(head(None, f"content-length: {LENGTH}") + body)
    for size in (10, 100_000):
        answer = await running.post(kit.chat("y" * size), authorization="Bearer key-a")
        assert answer.status == 200
    assert running.router.pool.metrics.errors["overloaded"] == 0


async def test_tenant_cannot_take_memory_of_another(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, limits={"maxBufferedBytes": 4_000_000})
    pool, body = running.router.pool, b"x" * (LENGTH - 1)
    for _ in range(10):
        _, writer = await running.connect()
        writer.write(head("key-a", f"content-length: {LENGTH}") + body)
    await kit.until(lambda: pool.metrics.errors["overloaded"] >= 9)
    assert pool.body_memory.used <= pool.body_memory.tenant_share
    assert (await running.post(kit.chat("y" * 900_000), authorization="Bearer key-b")).status == 200
    assert (await running.post(kit.chat("y"), authorization="Bearer key-a")).status == 200, "small ones have a reserve"


@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "addresses"])
async def test_unfinished_small_bodies_of_one_tenant_refuse_no_other(
    start: Any, kit: Any, keys: Any, keyed: bool
) -> None:
    """Each is below the bound of large bodies, and they ask for more than all memory."""
    running = await start(engines=1, auth=keys if keyed else {}, limits={"maxBufferedBytes": 1_200_000})
    pool = running.router.pool
    for _ in range(40):
        _, writer = await running.connect()
        writer.write(head("key-a", "content-length: 60001") + b"x" * 60_000)
    await kit.until(lambda: pool.metrics.errors["overloaded"] == 30)
    assert pool.body_memory.used == 600_000
    refused = pool.metrics.errors["overloaded"]
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0))
    for _ in range(20):
        writer.write(kit.request(kit.chat("y" * 1000), authorization="Bearer key-b"))
        assert (await read(kit, reader)).status == 200
    writer.close()
    assert pool.metrics.errors["overloaded"] == refused, "no body was evicted for them"
    assert (await running.post(kit.chat("y" * 1000), authorization="Bearer key-a")).status == 200


async def test_memory_is_free_once_answer_began(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    go = asyncio.Event()

    async def slowly(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("x")))
        await go.wait()
        writer.write(kit.chunked(kit.usage_event()) + kit.chunked(kit.event("[DONE]")) + b"0\r\n\r\n")

    running.engines[0].answer = slowly
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat("y" * 500_000, stream=True)))
    await reader.readuntil(b"data: ")
    [flight] = running.router.pool.in_flight
    assert running.router.pool.body_memory.used == 0
    assert (flight._prompt.payload, len(flight._prompt.text)) == (b"", 2048)
    assert flight._prompt.size > 500_000
    go.set()
    await reader.readuntil(b"\r\n0\r\n\r\n")


async def test_http_1_0_has_no_chunks(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    reader, writer = await running.connect()
    body = b'{"model":"tiny","prompt":"x"}'
    writer.write(
        b"POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n" + kit.chunked(body) + b"0\r\n\r\n"
    )
    answer = await read(kit, reader)
    assert (answer.status, answer.error["code"]) == (400, "malformed_http")
    assert not running.engines[0].seen


async def test_request_ids_are_random(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    ids = [(await running.post(kit.chat())).headers["x-request-id"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(len(one) == 24 and int(one, 16) >= 0 for one in ids)
    assert len({one[:6] for one in ids}) == 20, "no common beginning"
