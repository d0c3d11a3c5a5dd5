"""The load of one run: the arrivals of a workload, in real time, over HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plumage_bench.benches.soak.connection import Connection, LostError, request_bytes
from plumage_bench.workloads import Arrival, Prompt, Source

__all__ = ["Sent", "play"]

_SOON = 0.1  # seconds from the last preparation to the first arrival


@dataclass(slots=True)
class Sent:
    """One request. Times are modelled seconds. due: its arrival time. late: how long after it the request was sent.
    ttft: from `due` to the first event of the stream, None without one. ended: likewise, of the last. prompt, cached:
    tokens as the engine counted them. failed: why there is no complete answer."""

    due: float
    late: float = 0.0
    ttft: float | None = None
    ended: float | None = None
    prompt: int = 0
    cached: int = 0
    failed: str = ""


async def play(port: int, source: Source, scale: float, body: Callable[[Prompt], bytes], limit: float) -> list[Sent]:
    """All requests of `source`, in the order of their arrival. scale: seconds on the clock of a modelled second.
    limit: modelled seconds until a request counts as failed. Each request has a connection of its own."""
    first = [(arrival, request_bytes(body(arrival.prompt), "bench", close=True)) for arrival in source.initial()]
    gc.collect()
    gc.disable()
    try:
        return await _Play(port, source, scale, body, limit).all(first)
    finally:
        gc.enable()


class _Play:
    def __init__(self, port: int, source: Source, scale: float, body: Callable[[Prompt], bytes], limit: float) -> None:
        self._port, self._source, self._scale, self._body, self._limit = port, source, scale, body, limit
        self._began = time.monotonic() + _SOON
        self._sent: list[Sent] = []

    async def all(self, first: list[tuple[Arrival, bytes]]) -> list[Sent]:
        async with asyncio.TaskGroup() as group:
            for arrival, data in first:
                group.create_task(self._client(arrival, data))
        return sorted(self._sent, key=lambda one: one.due)

    async def _client(self, arrival: Arrival | None, data: bytes) -> None:
        """A request, and those that follow its answer."""
        while arrival is not None:
            await asyncio.sleep(self._began + arrival.at * self._scale - time.monotonic())
            sent = Sent(arrival.at)
            self._sent.append(sent)
            sent.late = self._now() - sent.due
            try:
                async with asyncio.timeout(self._limit * self._scale):
                    await self._ask(sent, data)
            except TimeoutError:
                sent.failed = f"no complete answer within {self._limit:g} modelled seconds"
            except LostError:
                sent.failed = "the connection broke"
            arrival = self._source.after(arrival.client, self._now())
            if arrival is not None:
                data = request_bytes(self._body(arrival.prompt), "bench", close=True)

    async def _ask(self, sent: Sent, data: bytes) -> None:
        connection = await Connection.open(self._port)
        try:
            await connection.send(data)
            status = await connection.answer()
            text = b""
            async for part in connection.parts():
                if sent.ttft is None and status == 200:
                    sent.ttft = self._now() - sent.due
                text += part
            if status == 200:
                sent.ended = self._now() - sent.due
                _read(sent, text)
            else:
                sent.failed = f"HTTP {status}: {text[:200].decode(errors='replace')}"
        finally:
            connection.abort()

    def _now(self) -> float:
        return (time.monotonic() - self._began) / self._scale


def _read(sent: Sent, text: bytes) -> None:
    """The engine's count of tokens, in the last event."""
    for line in reversed(text.split(b"\n")):
        if line.startswith(b"data: {") and b'"usage"' in line:
            usage: dict[str, Any] | None = json.loads(line[6:]).get("usage")
            if usage:
                sent.prompt = usage["prompt_tokens"]
                sent.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                return
    sent.failed = "the stream ended without the engine's count of tokens"
