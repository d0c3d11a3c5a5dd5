"""Clients: valid ones, each of whose streams is recorded, and those that send mutated requests."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from plumage_bench.benches.storm.mutations import mutated

__all__ = ["Honest", "Hostile", "Outcome", "is_named"]

_VALID_TIMEOUT = 90.0  # seconds for a valid request: longer than a router's restart with its longest back-off
_HOSTILE_TIMEOUT = 60.0  # seconds for the first byte: a killed router may be absent for twenty
_LONGEST = 1 << 20  # bytes of an answer that are read


@dataclass(frozen=True, slots=True)
class Outcome:
    """began, ended: monotonic seconds. kind: whole, cut (after the first byte), lost (before it), refused (the
    connection), named or unnamed (an error with or without a code)."""

    kind: str
    began: float
    ended: float


def is_named(status: int, body: bytes) -> bool:
    """Whether an error has a code, as all of Plumage's have."""
    try:
        error = json.loads(body)["error"]
        return isinstance(error["code"], str) and bool(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return status < 500


@dataclass(slots=True)
class Honest:
    """Streams of short chats, each on its own connection, one after the other until `stop`."""

    port: int
    rng: random.Random
    stop: asyncio.Event
    outcomes: list[Outcome] = field(default_factory=list)
    retried: int = 0  # lost requests that also failed in both retries

    async def run(self) -> None:
        while not self.stop.is_set():
            outcome = await self._one()
            self.outcomes.append(outcome)
            if outcome.kind in ("lost", "refused"):
                self.retried += not await self._again()
            await asyncio.sleep(self.rng.uniform(0.0, 0.1))

    async def _again(self) -> bool:
        """Retries as OpenAI's clients do."""
        for pause in (0.5, 1.0):
            await asyncio.sleep(pause)
            if (await self._one()).kind in ("whole", "cut", "named"):
                return True
        return False

    async def _one(self) -> Outcome:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_VALID_TIMEOUT):
                kind = await self._ask()
        except TimeoutError:
            kind = "lost"
        return Outcome(kind, began, time.monotonic())

    async def _ask(self) -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return "refused"
        answer = b""
        try:
            writer.write(self._request())
            await writer.drain()
            while (part := await reader.read(65_536)) and len(answer) < _LONGEST:
                answer += part
        except OSError:
            pass
        finally:
            writer.transport.abort()
        return _kind(answer)

    def _request(self) -> bytes:
        words = " ".join(f"w{self.rng.randrange(200)}" for _ in range(60))
        message = {"role": "user", "content": f"group {self.rng.randrange(8)} {words}"}
        body = json.dumps({"model": "tiny-chat", "messages": [message], "stream": True, "max_tokens": 8}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\nconnection: close"
        )
        return f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _kind(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 "):
        return "lost"
    status = int(head[9:12])
    if status == 200:
        return "whole" if b"data: [DONE]" in body else "cut"
    return "named" if is_named(status, body) else "unnamed"


@dataclass(slots=True)
class Hostile:
    """Mutated requests, each on its own connection. outcomes: by status, `closed` without an answer, `silent`. unnamed:
    errors of 5xx without a code, with the mutations. left: how many are still to be sent, by all clients."""

    port: int
    rng: random.Random
    left: list[int]
    advance: Callable[[int], None]
    outcomes: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while self.left[0] > 0:
            self.left[0] -= 1
            await self._one()
            self.advance(1)

    async def _one(self) -> None:
        request = mutated(self.rng)
        answer = b""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            self.outcomes["refused"] += 1
            return
        try:
            writer.write(request.data)
            if writer.can_write_eof():
                await writer.drain()
                writer.write_eof()
            async with asyncio.timeout(_HOSTILE_TIMEOUT):
                answer = await self._read(reader)
        except TimeoutError:
            self.outcomes["silent"] += 1
            self.silent.append("+".join(request.names))
            return
        except OSError:
            pass
        finally:
            writer.transport.abort()
        self._count(answer, request.names, head_only=request.data.startswith(b"HEAD "))

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Its head and what arrives with it. The rest of a long answer is not needed."""
        answer = b""
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            answer = await reader.readuntil(b"\r\n\r\n")
            while answer.startswith(b"HTTP/1.1 100 "):
                answer = await reader.readuntil(b"\r\n\r\n")
        status = answer[9:10]
        return answer + (await reader.read(65_536) if status == b"5" else b"")

    def _count(self, answer: bytes, names: tuple[str, ...], *, head_only: bool) -> None:
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            self.outcomes["closed"] += 1
            return
        status = int(head[9:12])
        self.outcomes[str(status)] += 1
        if status >= 500 and not is_named(status, body) and not head_only:
            self.unnamed.append(f"{status} {'+'.join(names)}")
