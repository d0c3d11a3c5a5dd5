"""Router processes that are killed while a supervisor keeps their clients' connections."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plumage.handover import Kind, message
from plumage.settings.router_config import ListenConfig
from plumage_cli.local.pool import connection_keeper
from plumage_cli.local.pool.connection_keeper import MOST_ROUTERS, ConnectionKeeper

pytestmark = pytest.mark.timeout(120)


class Supervised:
    """A keeper, and router processes by number. `engine`: the only one; it answers once `release` is set."""

    def __init__(self, folder: Path, engine: Any, kit: Any, routers: int = 1) -> None:
        self.folder = folder
        self.engine = engine
        self.release = asyncio.Event()
        self.reports: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.keeper = ConnectionKeeper(listener, 100, self.reports.append, routers=routers)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._kit = kit
        engine.answer = self._answer

    async def _answer(self, seen: Any, writer: asyncio.StreamWriter) -> None:
        await self.release.wait()
        await self.engine.normally(seen, writer)

    async def start_router(self, number: int = 0, timeouts: dict[str, float] | None = None, **limits: int) -> None:
        members = {"id": "chat-0", "url": f"http://127.0.0.1:{self.engine.port}", "agent": None, "state": "Ready"}
        (self.folder / "members.json").write_text(json.dumps({"pool": "chat", "replicas": [members]}))
        (self.folder / "salt-key").write_text("salts\n")
        settings = {
            "pool": "chat",
            "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
            "membershipFile": str(self.folder / "members.json"),
            "saltKeyFile": str(self.folder / "salt-key"),
            "listen": {"port": 0, "handoverFd": self.keeper.child_descriptor(number)},
            "limits": limits,
            "timeouts": timeouts or {},
        }
        file = self.folder / f"router-{number}.json"
        file.write_text(json.dumps(settings))
        self.keeper.renew(number)
        self._processes[number] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "plumage_router", "--config", str(file),
            pass_fds=[self.keeper.child_descriptor(number)], stderr=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def kill_router(self, number: int = 0) -> None:
        process = self._processes.pop(number)
        process.kill()
        await process.wait()
        self.keeper.ended(number)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def at_engine(self, requests: int) -> None:
        """Waits until the engine has got that many requests since the start."""
        await self._kit.until(lambda: len(self.engine.seen) >= requests)

    def all_answered(self) -> bool:
        """Whether the keeper has read that every answer has ended."""
        return not any(one.answering or one.received for one in self.keeper._connections.values())

    async def ask(self) -> Any:
        """Sends a request on a connection of its own."""
        reader, writer = await self.connect()
        writer.write(self._kit.request(self._kit.chat("hello"), connection="close"))
        return await asyncio.wait_for(self._kit.read_answer(reader), 60)

    async def ask_until_both_answer(self) -> None:
        """Opens connections until each of two routers has one, then closes them."""
        clients = []
        while True:
            clients.append(await self.connect())
            clients.append(await self.connect())
            for _, writer in clients[-2:]:
                writer.write(self._kit.request(self._kit.chat("hello")))
            for reader, _ in clients[-2:]:
                await asyncio.wait_for(self._kit.read_answer(reader), 30)
            if {one.connections > 0 for one in self.keeper._routers.values()} == {True}:
                break
        for _, writer in clients:
            writer.close()
        await self._kit.until(lambda: self.keeper.kept == 0)

    def signal(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    async def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for number in tuple(self._processes):
            await self.kill_router(number)
        await asyncio.to_thread(self.keeper.close)


@pytest.fixture
async def supervised(kit: Any, tmp_path: Path) -> AsyncIterator[Supervised]:
    engine = kit.Engine("chat-0")
    await engine.start()
    made = Supervised(tmp_path, engine, kit)
    await made.start_router()
    yield made
    await made.stop()
    await engine.stop()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What arrives until the connection ends."""
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""


async def test_accepted_request_is_answered_by_the_next_router(supervised: Supervised, kit: Any) -> None:
    reader, writer = await supervised.connect()
    body = kit.chat("a long question " * 20_000)  # arrives in many pieces
    writer.write(kit.request(body))
    await supervised.at_engine(1)
    await supervised.kill_router()
    await supervised.start_router()
    await supervised.at_engine(2)
    supervised.release.set()
    answer = await asyncio.wait_for(kit.read_answer(reader), 30)
    assert answer.status == 200
    assert [seen.json["messages"] for seen in supervised.engine.seen] == [body["messages"]] * 2
    writer.write(kit.request(kit.chat("again")))
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200, "the connection stays open"


async def test_half_a_request_waits_for_its_rest(supervised: Supervised, kit: Any) -> None:
    supervised.release.set()
    reader, writer = await supervised.connect()
    data = kit.request(kit.chat("in two pieces"))
    writer.write(data[:-20])
    await kit.until(lambda: supervised.keeper.kept == 1)
    await asyncio.sleep(0.2)  # the router has read it
    await supervised.kill_router()
    writer.write(data[-20:-10])
    await supervised.start_router()
    writer.write(data[-10:])
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
    assert [seen.json["messages"][0]["content"] for seen in supervised.engine.seen] == ["in two pieces"]


async def test_idle_connection_outlives_its_router(supervised: Supervised, kit: Any) -> None:
    supervised.release.set()
    reader, writer = await supervised.connect()
    for content in ("first", "second"):
        writer.write(kit.request(kit.chat(content)))
        assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
        await kit.until(supervised.all_answered)
        await supervised.kill_router()
        await supervised.start_router()
    assert len(supervised.engine.seen) == 2, "no answered request is sent again"


async def test_answer_that_has_begun_is_cut_and_not_repeated(supervised: Supervised, kit: Any) -> None:
    async def half(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD + kit.chunked(kit.token("one ")))
        await supervised.release.wait()

    supervised.engine.answer = half
    reader, writer = await supervised.connect()
    writer.write(kit.request(kit.chat("hello", stream=True)))
    begun = await asyncio.wait_for(reader.readuntil(b"one "), 30)
    assert begun.startswith(b"HTTP/1.1 200")
    await supervised.kill_router()
    await supervised.start_router()
    assert b"HTTP/1.1" not in await closed(reader)
    assert len(supervised.engine.seen) == 1


async def test_answer_that_the_client_has_not_read_ends_with_its_router(supervised: Supervised, kit: Any) -> None:
    """The last bytes are in that router's memory only. Another router would let the client wait for them."""

    async def long(seen: Any, writer: asyncio.StreamWriter) -> None:
        await supervised.release.wait()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50000\r\n\r\n"
        writer.write(head + b"x" * 50_000)  # less than the router holds before it stops to read

    supervised.engine.answer = long
    assert supervised.keeper._listener is not None
    supervised.keeper._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", supervised.port))
        client.sendall(kit.request(kit.chat("hello")))
        await supervised.at_engine(1)
        await kit.until(lambda: any(one.received for one in supervised.keeper._connections.values()))
        supervised.release.set()
        await kit.until(supervised.all_answered)
        assert supervised.keeper.kept == 0
        await supervised.kill_router()
        client.settimeout(30)
        received = await asyncio.to_thread(lambda: b"".join(iter(lambda: client.recv(4096), b"")))
    assert received.startswith(b"HTTP/1.1 200")
    assert len(received) < 50_000


async def test_next_router_closes_an_idle_connection_no_earlier(supervised: Supervised, kit: Any) -> None:
    supervised.release.set()
    reader, writer = await supervised.connect()
    writer.write(kit.request(kit.chat("hello")))
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
    await kit.until(supervised.all_answered)
    await supervised.kill_router()
    await supervised.start_router(timeouts={"header": 0.5})
    await kit.until(lambda: any(one.accepts for one in supervised.keeper._routers.values()))
    await asyncio.sleep(2)  # a new connection would be closed
    writer.write(kit.request(kit.chat("again")))
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200


async def test_router_without_descriptors_leaves_connections_with_the_supervisor(
    supervised: Supervised, kit: Any
) -> None:
    """It serves them once some are free."""
    supervised.release.set()
    first = await supervised.connect()
    first[1].write(kit.request(kit.chat("hello")))
    assert (await asyncio.wait_for(kit.read_answer(first[0]), 30)).status == 200
    pid = supervised._processes[0].pid
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min({*range(len(used) + 1)} - used), limits[1]))
    reader, writer = await supervised.connect()
    try:
        writer.write(kit.request(kit.chat("hello")))
        await kit.until(lambda: any(one.router is None for one in supervised.keeper._connections.values()))
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
    assert supervised._processes[0].returncode is None


async def test_client_that_leaves_is_not_kept(supervised: Supervised, kit: Any) -> None:
    _, writer = await supervised.connect()
    writer.write(kit.request(kit.chat("hello")))
    await supervised.at_engine(1)
    writer.transport.abort()
    await kit.until(lambda: supervised.keeper.kept == 0)


async def test_pipelined_requests_are_answered_and_the_connection_is_not_kept(supervised: Supervised, kit: Any) -> None:
    reader, writer = await supervised.connect()
    writer.write(kit.request(kit.chat("first")) + kit.request(kit.chat("second")))
    await supervised.at_engine(1)
    await supervised.kill_router()
    await supervised.start_router()
    supervised.release.set()
    for _ in range(2):
        assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
    assert [seen.json["messages"][0]["content"] for seen in supervised.engine.seen] == ["first", "first", "second"]
    await kit.until(lambda: supervised.keeper.kept == 0)
    writer.write(kit.request(kit.chat("third")))
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200, "the router still serves it"


async def test_request_with_which_routers_end_is_given_up(supervised: Supervised, kit: Any) -> None:
    reader, writer = await supervised.connect()
    idle_reader, idle = await supervised.connect()
    writer.write(kit.request(kit.chat("poison")))
    for ended in range(1, MOST_ROUTERS + 1):
        await supervised.at_engine(ended)
        await supervised.kill_router()
        await supervised.start_router()
    assert await closed(reader) == b""
    assert supervised.reports == [
        f"closed a client's connection: {MOST_ROUTERS} routers have ended with its request unanswered"
    ]
    supervised.release.set()
    idle.write(kit.request(kit.chat("hello")))
    assert (await asyncio.wait_for(kit.read_answer(idle_reader), 30)).status == 200, "others are kept"


async def test_more_bytes_than_the_bound_are_served_but_not_kept(
    supervised: Supervised, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_keeper, "MOST_BYTES", 10_000)
    reader, writer = await supervised.connect()
    writer.write(kit.request(kit.chat("x" * 20_000)))
    await supervised.at_engine(1)
    await kit.until(lambda: supervised.keeper.kept == 0)
    supervised.release.set()
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200


async def test_connections_over_the_routers_limit_wait_or_are_refused(kit: Any, tmp_path: Path) -> None:
    """The router pauses at its limit, and goes on when connections close."""
    engine = kit.Engine("chat-0")
    await engine.start()
    made = Supervised(tmp_path, engine, kit)
    await made.start_router(maxConnections=4)
    made.release.set()
    try:
        clients = [await made.connect() for _ in range(200)]  # more than the router answers with an error
        refused = [await asyncio.wait_for(kit.read_answer(reader), 30) for reader, _ in clients[4:100]]
        assert {answer.status for answer in refused} == {503}
        for _, writer in clients:
            writer.transport.abort()
        reader, writer = await made.connect()
        writer.write(kit.request(kit.chat("hello")))
        assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
        writer.close()
    finally:
        await made.stop()
        await engine.stop()


async def test_stopped_keeper_refuses_new_clients(supervised: Supervised, kit: Any) -> None:
    supervised.keeper.stop_accepting()

    def refused() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", supervised.port)) != 0

    await kit.until(refused)


async def test_other_routers_take_over_at_once(kit: Any, tmp_path: Path) -> None:
    engine = kit.Engine("chat-0")
    await engine.start()
    made = Supervised(tmp_path, engine, kit, routers=3)
    try:
        for number in range(3):
            await made.start_router(number)
        clients = [await made.connect() for _ in range(12)]
        for _, writer in clients:
            writer.write(kit.request(kit.chat("hello")))
        await made.at_engine(12)
        for number in (1, 2):  # none of them is started again
            await made.kill_router(number)
        made.release.set()
        answers = [await asyncio.wait_for(kit.read_answer(reader), 30) for reader, _ in clients]
        assert {answer.status for answer in answers} == {200}
    finally:
        await made.stop()
        await engine.stop()


async def test_stopped_router_gets_few_connections(kit: Any, tmp_path: Path) -> None:
    """Each connection goes to the router with the fewest. One that hangs has those that it does not answer."""
    engine = kit.Engine("chat-0")
    await engine.start()
    made = Supervised(tmp_path, engine, kit, routers=2)
    made.release.set()
    try:
        for number in range(2):
            await made.start_router(number)
        await made.ask_until_both_answer()
        made.signal(1, signal.SIGSTOP)
        asked: list[asyncio.Task[Any]] = []
        while len(asked) < 20:  # one waits for the router that hangs
            asked.append(asyncio.create_task(made.ask()))
            await kit.until(lambda: made.keeper.kept <= 1 and sum(one.done() for one in asked) >= len(asked) - 1)
        made.signal(1, signal.SIGCONT)
        assert {(await one).status for one in asked} == {200}
    finally:
        await made.stop()
        await engine.stop()


def test_supervisor_passes_plain_connections_only() -> None:
    with pytest.raises(ValidationError, match="handoverFd can't be given with tls"):
        ListenConfig.model_validate({"handoverFd": 5, "tls": {"certificateFile": "a", "keyFile": "b"}})


async def test_router_ends_when_it_cannot_read_the_supervisor(supervised: Supervised, kit: Any) -> None:
    """Its clients get another one. It could not know any more which bytes belong to which connection."""
    reader, writer = await supervised.connect()
    writer.write(kit.request(kit.chat("hello")))
    await supervised.at_engine(1)
    supervised.keeper._routers[0].sock.sendall(message(Kind.DROP, 1))
    assert await asyncio.wait_for(supervised._processes[0].wait(), 30) == 1
    await supervised.start_router()
    supervised.release.set()
    assert (await asyncio.wait_for(kit.read_answer(reader), 30)).status == 200
