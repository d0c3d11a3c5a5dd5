"""The clients of a soak. Each kind goes on until `stop`, and counts what became of its requests.

Texts are new all the time: a store that is bounded by their number fills up, and must then stay as large.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from plumage_bench.benches.soak.connection import Connection, LostError, request_bytes

__all__ = ["CLIENTS", "Load", "Tenants", "answer_long", "fill"]

_WORDS: Final = ("plan", "read", "write", "check", "file", "test", "open", "close", "run", "build", "move", "merge")
_TENANTS: Final = 4
_NEW_KEPT: Final = 16  # new tenants whose keys are still valid
_UNTIL_VALID: Final = 15.0  # seconds for a router to read the keys file again
_SECONDS: Final = 60.0  # for one turn of a client: a restarted router is away for some of them
_SMALL_BUFFER: Final = 4096  # bytes
_AFTER_LOSS: Final = 0.5  # seconds
_FILLING: Final = 40  # words of a request that fills stores
_LONG: Final = 3200  # words, 16 KB: seven or eight of the runs that a router's stored look-ups consist of
_LONG_EVERY: Final = 130
_ANSWER: Final = 300  # tokens
_UNTIL_KNOWN: Final = 0.3  # seconds until a router knows what an engine has cached


class Tenants:
    """The keys file: some tenants that stay, and the latest of those that come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = 0
        self._write()

    def key(self, rng: random.Random) -> str:
        return f"key-{rng.randrange(_TENANTS)}"

    def add(self) -> str:
        """The key of a tenant with a new name. Routers read the file within seconds."""
        self.made += 1
        self._write()
        return f"new-key-{self.made}"

    def _write(self) -> None:
        """In one step: a router may read at any time."""
        new = range(max(0, self.made - _NEW_KEPT), self.made)
        lines = [f"tenant-{number} key-{number}\n" for number in range(_TENANTS)]
        lines += [f"new-tenant-{number + 1} new-key-{number + 1}\n" for number in new]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(lines))
        fresh.chmod(0o600)
        os.replace(fresh, self.path)


@dataclass(slots=True)
class Load:
    """What all clients share. outcomes: by kind and what happened. requests: that were sent."""

    port: int
    tenants: Tenants
    seed: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: int = 0

    async def run(self, kind: str, number: int) -> None:
        """One client, until `stop`."""
        rng = random.Random(f"{self.seed} {kind} {number}")
        turn, pause, _ = CLIENTS[kind]
        while not self.stop.is_set():
            try:
                async with asyncio.timeout(_SECONDS):
                    outcome = await turn(self, rng)
            except LostError:
                outcome = "lost"
            except TimeoutError:
                outcome = "silent"
            self.outcomes[kind, outcome] += 1
            await self.rest(_AFTER_LOSS if outcome == "lost" else rng.uniform(0.5, 1.5) * pause)

    async def rest(self, seconds: float) -> None:
        """Less if the load stops meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            pass

    async def ask(self, connection: Connection, body: Mapping[str, Any], key: str, *, close: bool = False) -> None:
        self.requests += 1
        await connection.send(request_bytes(body, key, close=close))


def chat(messages: list[dict[str, str]], tokens: int, *, stream: bool = True) -> dict[str, Any]:
    """Its answer has exactly so many tokens."""
    return {"model": "tiny-chat", "messages": messages, "stream": stream, "max_tokens": tokens, "ignore_eos": True}


def _text(rng: random.Random, words: int) -> str:
    return f"{rng.getrandbits(48):x} " + " ".join(f"{rng.choice(_WORDS)}{rng.randrange(1000)}" for _ in range(words))


def _user(rng: random.Random, words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": _text(rng, words)}]


def _long(rng: random.Random) -> list[dict[str, str]]:
    """Many bytes in few tokens."""
    return [{"role": "user", "content": f"{rng.getrandbits(48):x} " + " ".join(rng.choices(_WORDS, k=_LONG))}]


async def _conversation(load: Load, rng: random.Random) -> str:
    """Several turns over one connection; each prompt contains the one before."""
    key, messages = load.tenants.key(rng), [{"role": "system", "content": "You are brief. " * rng.randint(1, 20)}]
    connection = await Connection.open(load.port)
    try:
        for _ in range(rng.randint(2, 10)):
            messages += _user(rng, rng.randint(20, 60))
            await load.ask(connection, chat(messages, rng.randint(4, 24)), key)
            status = await connection.read_all()
            if status != 200:
                return str(status)
            messages.append({"role": "assistant", "content": _text(rng, 12)})
            await load.rest(rng.uniform(0.1, 1.0))
            if load.stop.is_set() or not connection.keeps_alive:
                break
        return "200"
    finally:
        connection.abort()


async def _leave_amid(load: Load, rng: random.Random) -> str:
    """Leaves after the first parts of a stream."""
    connection = await Connection.open(load.port)
    try:
        await load.ask(connection, chat(_user(rng, 60), 60), load.tenants.key(rng))
        status = await connection.answer()
        left = rng.randint(1, 12)
        async for _ in connection.parts():
            left -= 1
            if not left:
                return "left"
        return str(status)
    finally:
        connection.abort()


async def _leave_early(load: Load, rng: random.Random) -> str:
    """Leaves before the first byte, and sometimes before its own last one."""
    connection = await Connection.open(load.port)
    try:
        data = request_bytes(chat(_user(rng, 200), 20), load.tenants.key(rng))
        load.requests += 1
        await connection.send(data[: rng.choice((len(data), len(data) // 2, 60))])
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.01, 0.05)))
        return "left"
    finally:
        connection.abort()


async def _reconnect(load: Load, rng: random.Random) -> str:
    """A connection for each request, with and without a stream."""
    connection = await Connection.open(load.port)
    try:
        body = chat(_user(rng, 30), 8, stream=rng.random() < 0.5)
        await load.ask(connection, body, load.tenants.key(rng), close=True)
        return str(await connection.read_all())
    finally:
        connection.abort()


async def _read_slowly(load: Load, rng: random.Random) -> str:
    connection = await Connection.open(load.port, receive_buffer=_SMALL_BUFFER)
    try:
        await load.ask(connection, chat(_user(rng, 30), 300), load.tenants.key(rng))
        status = await connection.answer()
        async for _ in connection.parts():
            await load.rest(0.02)
        return str(status)
    finally:
        connection.abort()


async def _be_wrong(load: Load, rng: random.Random) -> str:
    """Requests that are refused, with names that nobody sent before."""
    name, key = f"{rng.getrandbits(48):x}", load.tenants.key(rng)
    connection = await Connection.open(load.port)
    body = chat(_user(rng, 10), 4)
    wrong = (
        request_bytes(b'{"model": ' + name.encode(), key),
        request_bytes({**body, name: 1, "messages": 7}, key),
        request_bytes({**body, "model": name}, key),
        request_bytes(body, f"unknown-{name}"),
        request_bytes(body, key, path=f"/v1/{name}"),
        f"GET /v1/chat/completions HTTP/1.1\r\nhost: {name}\r\nx-{name}: 1\r\n\r\n".encode(),
        f"GET /v1/models/{name} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode(),
        f"{name}\r\n\r\n".encode(),
    )
    try:
        load.requests += 1
        await connection.send(rng.choice(wrong))
        return str(await connection.read_all())
    finally:
        connection.abort()


async def _be_new(load: Load, rng: random.Random) -> str:
    """A tenant whose key is valid some seconds after it was written."""
    key, waited = load.tenants.add(), 0.0
    while not load.stop.is_set() and waited < _UNTIL_VALID:
        await load.rest(1.0)
        waited += 1.0
        connection = await Connection.open(load.port)
        try:
            await load.ask(connection, chat(_user(rng, 30), 8), key, close=True)
            status = await connection.read_all()
        finally:
            connection.abort()
        if status != 401:
            return str(status)
    return "stopped" if load.stop.is_set() else "401"


async def answer_long(load: Load, rng: random.Random, left: list[int]) -> None:
    """Long answers until no requests of `fill` are left. An engine publishes a batch of events for each step in which
    an answer fills a block; prompts that are computed together make one batch."""
    while left[0] > 0 and not load.stop.is_set():
        try:
            connection = await Connection.open(load.port)
            try:
                body = chat(_user(rng, 5), _ANSWER, stream=False)
                await _fill_once(load, connection, body, load.tenants.key(rng))
            finally:
                connection.abort()
        except LostError:
            load.outcomes["fill", "lost"] += 1
            await load.rest(_AFTER_LOSS)


async def fill(load: Load, rng: random.Random, left: list[int]) -> None:
    """Short requests one after the other over one connection, each with a new text, until none are `left`. Now and then
    a long prompt is sent twice, so that it is found in a cache."""
    while left[0] > 0 and not load.stop.is_set():
        try:
            connection = await Connection.open(load.port)
            try:
                while left[0] > 0 and connection.keeps_alive and not load.stop.is_set():
                    left[0] -= 1
                    again = left[0] % _LONG_EVERY == 0
                    body = chat(_long(rng) if again else _user(rng, _FILLING), 1, stream=False)
                    key = load.tenants.key(rng)
                    await _fill_once(load, connection, body, key)
                    if again:
                        await load.rest(_UNTIL_KNOWN)
                        await _fill_once(load, connection, body, key)
            finally:
                connection.abort()
        except LostError:
            load.outcomes["fill", "lost"] += 1
            await load.rest(_AFTER_LOSS)


async def _fill_once(load: Load, connection: Connection, body: Mapping[str, Any], key: str) -> None:
    await load.ask(connection, body, key)
    load.outcomes["fill", str(await connection.read_all())] += 1


Turn = Callable[[Load, random.Random], Awaitable[str]]
CLIENTS: Final[Mapping[str, tuple[Turn, float, int]]] = {
    "conversation": (_conversation, 0.5, 16),
    "leaves amid a stream": (_leave_amid, 0.3, 6),
    "leaves before the first byte": (_leave_early, 0.4, 6),
    "reconnects": (_reconnect, 0.3, 4),
    "reads slowly": (_read_slowly, 0.5, 4),
    "is wrong": (_be_wrong, 0.3, 4),
    "is new": (_be_new, 5.0, 1),
}
"""By kind: a turn, the mean pause after it in seconds, and the number of such clients."""
