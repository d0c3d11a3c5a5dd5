"""What tenants used: metrics, and records on standard output."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FIELDS = ("requests", "estimatedRequests", "promptTokens", "cachedTokens", "outputTokens")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "keys").write_text("alice key-a\nbob key-b\n")
    return {"apiKeysFile": str(tmp_path / "keys")}


def of(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def text_of(written: Path) -> str:
    return written.read_text()


def sums(written: Path) -> dict[str, tuple[int, ...]]:
    """The sum of all records, by tenant."""
    found: dict[str, Counter[str]] = {}
    for line in text_of(written).splitlines():
        record = json.loads(line)
        if record.get("log") == "usage":
            found.setdefault(record["tenant"], Counter()).update({name: record[name] for name in FIELDS})
    return {tenant: tuple(sums[name] for name in FIELDS) for tenant, sums in found.items()}


@pytest.mark.parametrize("access_log", [False, True])
async def test_records_and_metrics_have_the_sums(
    start: Any, kit: Any, keys: Any, written: Path, monkeypatch: pytest.MonkeyPatch, access_log: bool
) -> None:
    monkeypatch.setattr("plumage_router.proxy.usage_log.INTERVAL", 0.05)
    running = await start(engines=2, auth=keys, usageLog=True, accessLog=access_log)
    for stream in (True, False):
        assert (await running.post(kit.chat(stream=stream), **of("key-a"))).status == 200
    assert (await running.post(kit.chat(priority=1), **of("key-a"))).status == 400, "no engine saw it"
    await kit.until(lambda: sums(written) == {"alice": (2, 0, 200, 128, 6)})
    assert (await running.post(kit.chat(), **of("key-b"))).status == 200
    await running.router.stop()
    assert sums(written) == {"alice": (2, 0, 200, 128, 6), "bob": (1, 0, 100, 64, 3)}
    lines = list(running.router.pool.usage.lines())
    assert 'plumage_router_tenant_prompt_tokens_total{tenant="alice",model="tiny"} 200' in lines
    assert "key-a" not in text_of(written)


async def test_stream_that_its_client_leaves_is_estimated(start: Any, kit: Any, keys: Any, written: Path) -> None:
    running = await start(engines=1, auth=keys, usageLog=True)

    running.engines[0].answer = kit.endless
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat("a prompt " * 100, stream=True), **of("key-a")))
    got = b""
    while b"word 499" not in got:
        got += await reader.read(1 << 16)
    writer.transport.abort()
    await kit.until(lambda: not running.router.pool.in_flight)
    await running.router.stop()
    requests, estimated, prompt, cached, output = sums(written)["alice"]
    assert (requests, estimated, cached) == (1, 1, 0)
    assert 500 <= output <= 700
    assert 100 <= prompt <= 900


async def test_request_that_its_client_leaves_before_an_answer_counts_nothing(
    start: Any, kit: Any, keys: Any, written: Path
) -> None:
    running = await start(engines=1, auth=keys, usageLog=True)

    async def waits(seen: Any, writer: Any) -> None:
        await asyncio.sleep(3600)

    running.engines[0].answer = waits
    _, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True), **of("key-a")))
    await kit.until(lambda: running.engines[0].seen)
    writer.transport.abort()
    await kit.until(lambda: not running.router.pool.in_flight)
    await running.router.stop()
    assert sums(written) == {}


async def test_log_is_off_by_default(start: Any, kit: Any, written: Path) -> None:
    running = await start(engines=1)
    assert (await running.post(kit.chat())).status == 200
    await running.router.stop()
    assert text_of(written) == ""
    lines = list(running.router.pool.usage.lines())
    assert 'plumage_router_tenant_requests_total{tenant="",model="tiny"} 1' in lines
