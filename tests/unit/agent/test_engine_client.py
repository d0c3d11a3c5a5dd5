"""The agent's calls to the engine beside it."""

from __future__ import annotations

import asyncio

import pytest

from plumage_engine.agent.engine.client import EngineClient


async def test_proxy_of_the_environment_is_not_used_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        metrics = b"vllm:num_requests_running 3.0\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(metrics), metrics))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = EngineClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await client.load()).running == 3
        await client.close()
