"""A router on a real socket with uvloop, and small engines whose answers a test sets."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop
from support.multi_pool_router import Gateway

from plumage.settings.router_config import RouterConfig
from plumage_router.http.json_lines import JsonLines
from plumage_router.server import RouterServer


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Seen:
    """A request as an engine got it."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


USAGE = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103,
         "prompt_tokens_details": {"cached_tokens": 64}}  # fmt: skip


def event(payload: dict[str, Any] | str) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def token(word: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
    return event(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    )


def usage_event() -> bytes:
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
                  "usage": USAGE})  # fmt: skip


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


async def endless(seen: Any, writer: Any) -> None:
    """An engine's answer: 500 events at once, then more without an end. A router notices by them that a client left."""
    writer.write(STREAM_HEAD + b"".join(chunked(token(f"word {number}")) for number in range(500)))
    while True:
        await asyncio.sleep(0.05)
        writer.write(chunked(token("more")))


class Engine:
    """An engine over a plain socket. `answer(seen, writer)` may be replaced; `closed` is set when a client went away
    while its answer was being written."""

    alive: ClassVar[set[Engine]] = set()

    def __init__(self, name: str, tls: ssl.SSLContext | None = None) -> None:
        self.name = name
        self.tls = tls
        self.seen: list[Seen] = []
        self.answer: Callable[[Seen, asyncio.StreamWriter], Awaitable[None]] = self.normally
        self.healthy = True
        self.connections = 0
        self.closed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.alive.add(self)

    async def stop(self) -> None:
        """As if killed: the port refuses, every connection breaks."""
        self.alive.discard(self)
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            while True:
                seen = await self._read(reader)
                if seen.line.startswith("GET /health"):
                    writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % (200 if self.healthy else 503))
                    continue
                self.seen.append(seen)
                await self._answer(seen, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Runs the answer while watching for the client's end, as an engine does."""
        answer = asyncio.ensure_future(self.answer(seen, writer))
        watch = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        if answer not in done:
            answer.cancel()
            self.closed.set()
            raise ConnectionError
        watch.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await watch
        if isinstance(answer.exception(), ConnectionError):
            self.closed.set()
        answer.result()

    async def _read(self, reader: asyncio.StreamReader) -> Seen:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = await read_chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Seen(head[0], headers, body)

    async def normally(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        """Three tokens, as a stream, with its usage where that is asked for, or at once."""
        if seen.json.get("stream"):
            asked = (seen.json.get("stream_options") or {}).get("include_usage")
            last = [usage_event()] if asked else []
            words = [token("one "), token("two "), token(self.name), *last, event("[DONE]")]
            writer.write(STREAM_HEAD + b"".join(map(chunked, words)) + b"0\r\n\r\n")
        else:
            writer.write(self.whole())

    def whole(self) -> bytes:
        message = {"role": "assistant", "content": f"one two {self.name}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                           "usage": USAGE}).encode()  # fmt: skip
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@dataclass
class Answer:
    """A response as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]  # type: ignore[no-any-return]


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body without trailers; raises IncompleteReadError when it is cut short."""
    body = b""
    while size := int(await reader.readuntil(b"\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """One response; raises IncompleteReadError when it is cut short."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = await read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    return Answer(int(head[0].split()[1]), headers, body)


@dataclass
class Running:
    """A router and the engines behind it."""

    router: RouterServer
    engines: list[Engine]
    members: Path
    folder: Path
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.router.addresses[0].rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def send(self, data: bytes) -> Answer:
        """Raw bytes on a connection of their own; the first response."""
        reader, writer = await self.connect()
        writer.write(data)
        async with asyncio.timeout(30):
            return await read_answer(reader)

    async def post(self, body: Any, *, path: str = "/v1/chat/completions", **headers: str) -> Answer:
        return await self.send(request(body, path=path, **headers))

    async def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        page = (await self.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
        found = re.search(rf"^{name} (\S+)$", page, re.M)
        assert found is not None, name
        return float(found[1])

    def write_members(self, states: dict[str, str] | None = None) -> None:
        write_members(self.members, self.engines, states or {})

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.router.stop(drain_seconds=0)


def request(body: Any, *, path: str = "/v1/chat/completions", method: str = "POST", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"host": "router", "content-type": "application/json", "content-length": str(len(data))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}


def write_members(path: Path, engines: list[Engine], states: dict[str, str]) -> None:
    lines = [
        {
            "id": e.name,
            "url": f"{'http' if e.tls is None else 'https'}://127.0.0.1:{e.port}",
            "agent": None,
            "state": states.get(e.name, "Ready"),
        }
        for e in engines
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"pool": "chat", "replicas": lines}))
    fresh.rename(path)


async def until(holds: Callable[[], Any], seconds: float = 30.0) -> None:
    """Waits for the state of the world."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def kit() -> Any:
    """The helpers above, for test modules."""
    import types

    names = (request, chat, until, read_answer, token, event, usage_event, chunked, endless)
    return types.SimpleNamespace(**{f.__name__: f for f in names}, STREAM_HEAD=STREAM_HEAD, Engine=Engine, USAGE=USAGE)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    made = Gateway(tmp_path)
    yield made
    if hasattr(made, "router"):
        await made.stop()


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    """Two small ones, whose answers end in their name."""
    made = [Engine("chat-0"), Engine("code-0")]
    for engine in made:
        await engine.start()
    yield made
    for engine in tuple(Engine.alive):
        await engine.stop()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """What goes to standard output."""
    path = tmp_path / "stdout"
    with path.open("wb") as stream:
        init = JsonLines.__init__
        monkeypatch.setattr(JsonLines, "__init__", lambda self: init(self, stream.fileno()))
        yield path


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """`await start(engines=2, policy=…, limits={…}, timeouts={…}, …)`: a router with that many engines."""
    running: list[Running] = []

    async def begin(engines: int = 2, tls: ssl.SSLContext | None = None, **config: Any) -> Running:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        started = [Engine(f"chat-{index}", tls) for index in range(engines)]
        for engine in started:
            await engine.start()
        members = folder / "members.json"
        write_members(members, started, {})
        model = {"name": "tiny", "modelFolder": "builtin://tiny-chat", **config.pop("model", {})}
        (folder / "salt-key").write_text("salts\n")
        settings = {"pool": "chat", "model": model, "membershipFile": str(members), "listen": {"port": 0}, "seed": 1,
                    "saltKeyFile": str(folder / "salt-key"), "policy": {"name": "RoundRobin"}, **config}  # fmt: skip
        router = RouterServer(RouterConfig.model_validate(settings))
        await router.start()
        running.append(Running(router, started, members, folder))
        return running[-1]

    yield begin
    for one in running:
        await one.close()
    for engine in tuple(Engine.alive):
        await engine.stop()
