"""The access log has one line for each request, without secrets of clients."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from plumage_router.http.json_lines import MAX_WAITING, JsonLines

SECRET = "sk-acme-0123456789abcdef"


def _lines(running: Any, written: Path) -> list[dict[str, Any]]:
    running.router.pool.close_access_log()
    return [json.loads(line) for line in _content(written).splitlines()]


def _content(written: Path) -> bytes:
    return written.read_bytes()


async def test_request_has_one_line(start: Any, kit: Any, written: Path, tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"acme {SECRET}\n")
    running = await start(engines=2, accessLog=True, auth={"apiKeysFile": str(keys)})
    bearer = {"authorization": f"Bearer {SECRET}"}
    assert (await running.post(kit.chat("my prompt", stream=True), x_request_id="r-1", **bearer)).status == 200
    assert (await running.post(kit.chat("my prompt", priority=1), **bearer)).status == 400
    assert (await running.post(kit.chat("my prompt"), authorization="Bearer wrong")).status == 401
    await running.send(kit.request({}, path=f"/v1/models?key={SECRET}", method="GET", **bearer))
    await running.send(kit.request({}, path=f"/{SECRET}", method="GET", **bearer))
    await running.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await running.send(b"nonsense\r\n\r\n")
    lines = _lines(running, written)
    assert [(line.get("path"), line["status"], line.get("error"), line.get("outcome")) for line in lines] == [
        ("/v1/chat/completions", 200, None, "Finished"),
        ("/v1/chat/completions", 400, "field_not_allowed", "Failed"),
        (None, 401, "invalid_api_key", None),
        ("/v1/models", 200, None, None),
        ("other", 404, None, None),
        (None, 400, "malformed_http", None),
    ]
    first = lines[0]
    assert (first["requestId"], first["tenant"], first["model"], first["stream"]) == ("r-1", "acme", "tiny", True)
    assert (first["promptTokens"], first["cachedTokens"], first["outputTokens"]) == (100, 64, 3)
    assert first["replica"] in ("chat-0", "chat-1")
    assert 0 < first["ttftSeconds"] <= first["seconds"]
    assert SECRET not in str(lines)
    assert "my prompt" not in str(lines)


async def test_failures_and_aborts_have_a_line(start: Any, kit: Any, written: Path) -> None:
    running = await start(engines=2, accessLog=True)

    async def fails(seen: Any, writer: asyncio.StreamWriter) -> None:
        if b"wait" in seen.body:
            await asyncio.sleep(3600)
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")

    for engine in running.engines:
        engine.answer = fails
    assert (await running.post(kit.chat())).status == 502
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat("wait")))
    await kit.until(lambda: running.router.pool.in_flight)
    writer.transport.abort()
    await kit.until(lambda: not running.router.pool.in_flight)
    failed, left = _lines(running, written)
    assert (failed["status"], failed["error"], sorted(failed["failed"])) == (
        502,
        "engines_failed",
        ["chat-0", "chat-1"],
    )
    assert (left["status"], left["outcome"]) == (499, "Aborted")


async def test_log_is_off_by_default(start: Any, kit: Any, written: Path) -> None:
    running = await start(engines=1)
    assert (await running.post(kit.chat())).status == 200
    assert running.router.pool.access_log is None
    assert not _content(written)


def test_slow_reader_costs_lines_but_no_time() -> None:
    reading, writing = os.pipe()
    log, added = JsonLines(writing), 3 * MAX_WAITING
    for number in range(added):
        log.add({"number": number, "filler": "x" * 100})
    in_pipe = (1 << 16) // 100  # lines that the thread may have written before it had to wait
    assert MAX_WAITING - in_pipe <= log.dropped <= 2 * MAX_WAITING
    text = b""
    while text.count(b"\n") < added - log.dropped:
        text += os.read(reading, 1 << 20)
    log.close()
    os.close(writing)
    os.close(reading)
    numbers = [json.loads(line)["number"] for line in text.splitlines()]
    assert numbers == sorted(set(numbers))


def test_closed_reader_is_not_a_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = JsonLines(writing)
    log.add({"number": 1})
    log.close()
    os.close(writing)
    assert log.dropped == 1
