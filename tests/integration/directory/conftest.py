"""Real servers for the directory's tests, and a relay that can stall, cut and encrypt connections."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.directories import Sentinels
from support.needs import directory_server, missing
from support.ports import free_ports

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.server.local_server import LocalServer

Until = Callable[..., Awaitable[None]]


@pytest.fixture(scope="session")
def binary() -> Path:
    return directory_server()


@pytest.fixture
def server(binary: Path) -> Iterator[LocalServer]:
    local = LocalServer(binary=binary)
    local.start()
    yield local
    local.stop()


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[Redis]:
    """A plain client, to read entries and to cause faults."""
    found: Redis = Redis.from_url(server.url, protocol=2)
    yield found
    await found.aclose()


@pytest.fixture
def until() -> Until:
    async def wait(condition: Callable[[], Any], within: float = 60.0) -> None:
        deadline = asyncio.get_running_loop().time() + within
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
            await asyncio.sleep(0.005)

    return wait


class World:
    """Writers and routers of one test. All are closed at its end."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack
        self._rng = random.Random(11)

    async def writer(self, replica: str = "r0", url: str | None = None, **options: Any) -> DirectoryWriter:
        writer = DirectoryWriter(url or self.url, pool="p", replica=replica, rng=self._rng, **options)
        return await self._stack.enter_async_context(writer)

    async def router(self, *replicas: str, url: str | None = None, **options: Any) -> DirectorySync:
        options = {"poll_seconds": 0.1, **options}
        sync = DirectorySync(url or self.url, pool="p", mirror=Mirror(), rng=self._rng, **options)
        sync.set_replicas({name: slot for slot, name in enumerate(replicas or ("r0",))})
        return await self._stack.enter_async_context(sync)


@pytest.fixture
async def world(server: LocalServer) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(server.url, stack)


@pytest.fixture
async def world_at() -> AsyncIterator[Callable[[str], World]]:
    async with AsyncExitStack() as stack:
        yield lambda url: World(url, stack)


class Relay:
    """A socket in front of a server. `stalled`: nothing passes. `mute`: requests pass and replies are discarded."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.mute = False
        self.thrown_away = 0
        self.url = ""

    async def listen(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path)
        self.url = f"unix://{path}"

    async def listen_tls(self, context: ssl.SSLContext) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        self._open |= {writer, inner_writer}
        pumps = [
            asyncio.create_task(self._pump(reader, inner_writer, False)),
            asyncio.create_task(self._pump(inner_reader, writer, True)),
        ]
        await asyncio.gather(*pumps, return_exceptions=True)
        for side in (writer, inner_writer):
            side.close()
            with suppress(OSError, ssl.SSLError):
                await side.wait_closed()
        self._open -= {writer, inner_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bool) -> None:
        with suppress(OSError, ssl.SSLError):
            while data := await reader.read(65536):
                await self.flowing.wait()
                if reply and self.mute:
                    self.thrown_away += 1
                    continue
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.flowing.set()
        for _ in range(5):  # the event loop needs some turns between accepting and serving a connection
            await asyncio.sleep(0)
        while self._serving:  # a connection that was just accepted is not open yet
            self.cut()
            await asyncio.wait(self._serving, timeout=0.05)
        await self._server.wait_closed()


@pytest.fixture
async def relay_to() -> AsyncIterator[Callable[[Path], Relay]]:
    """Relays to any server's socket."""
    made: list[Relay] = []

    def make(target: Path) -> Relay:
        made.append(Relay(target))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def relay(server: LocalServer, relay_to: Callable[[Path], Relay]) -> Relay:
    found = relay_to(server.socket)
    await found.listen(server.folder / "relay.sock")
    return found


@pytest.fixture
def sentinels(binary: Path, tmp_path: Path) -> Iterator[Sentinels]:
    with Sentinels(binary, free_ports(3), tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, server.pem and server.key for 127.0.0.1."""
    if shutil.which("openssl") is None:
        missing("an openssl command, to make test certificates", "apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", "/CN=directory", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")
    return folder
