"""One measurement: a router process, an engine that answers at once, small requests, and a process of hostile ones.

A router that fills its core at real-time priority is stopped by Linux for up to 50 ms a second, if any other process
waits for that core (`sched_rt_runtime_us`, and the fair server since Linux 6.8). Small requests of that time would
measure the kernel, so they are left out and counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from plumage.errors import ConfigurationError
from plumage_bench.benches.hostile_bodies.bodies import BODIES, MODEL, Hostile
from plumage_bench.guarded import GUARDED

__all__ = ["Sample", "Setting", "measure", "outside"]

RATE = 50.0  # small requests a second
CONNECTIONS = 8
CONTEXT = 131_072  # tokens
TIMEOUT = 30.0  # seconds
_WATCH, _STOP = 0.005, 0.003  # seconds between two looks, and of waiting in between that counts as a stop
_ANSWER = b'{"id":"c","object":"text_completion","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_ANSWER), _ANSWER)
_SMALL = json.dumps({"model": MODEL, "prompt": "hello " * 50}).encode()


@dataclass(frozen=True, slots=True)
class Setting:
    """folder: for files, removed at the end. hostile: what is sent besides small requests; None: nothing."""

    folder: Path
    hostile: Hostile | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds of the small requests; the number that failed; answers to hostile bodies, by status. stopped: small
    requests that were in flight while the kernel kept the router from its core; the milliseconds are without them."""

    p50: float
    p99: float
    longest: float
    requests: int
    failed: int
    statuses: dict[str, int]
    stopped: int

    @property
    def sent(self) -> int:
        return sum(self.statuses.values())

    def document(self) -> dict[str, object]:
        return asdict(self)


async def measure(setting: Setting) -> Sample:
    """ConfigurationError if the router does not start."""
    shutil.rmtree(setting.folder, ignore_errors=True)
    setting.folder.mkdir(parents=True)
    engine = await asyncio.start_server(_engine, "127.0.0.1", 0)
    try:
        async with _router(setting.folder, engine.sockets[0].getsockname()[1]) as (port, router):
            await _small(port, 1.0)
            async with _hostile(setting, port) as statuses, _stops(router) as stops:
                times = await _small(port, setting.seconds)
    finally:
        engine.close()
        shutil.rmtree(setting.folder, ignore_errors=True)
    known = [one for one in times if one is not None]
    good = sorted(1000 * (ended - due) for due, ended in outside(known, stops))
    if not good:
        raise ConfigurationError("no small request was answered: is the machine too busy?")
    failed, stopped = len(times) - len(known), len(known) - len(good)
    return Sample(_share(good, 0.5), _share(good, 0.99), good[-1], len(times), failed, dict(statuses), stopped)


_Times = Sequence[tuple[float, float]]
"""(begin, end) in seconds."""


def outside(requests: _Times, stops: _Times) -> list[tuple[float, float]]:
    """The requests that were not in flight in any stop."""
    return [one for one in requests if not any(one[0] < end and begin < one[1] for begin, end in stops)]


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            left = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            while left:
                left -= len(await reader.read(min(left, 1 << 18)))
            writer.write(_WHOLE)


@asynccontextmanager
async def _stops(router: int) -> AsyncIterator[list[tuple[float, float]]]:
    """When the kernel kept the router's thread from its core for `_STOP` or longer, as (begin, end)."""
    found: list[tuple[float, float]] = []
    file = Path(f"/proc/{router}/schedstat")

    async def watch() -> None:
        before, last = _waited(file), time.perf_counter()
        while True:
            await asyncio.sleep(_WATCH)
            waited, now = _waited(file), time.perf_counter()
            if waited - before >= _STOP * max(1.0, (now - last) / _WATCH):  # a late look must not add up short waits
                found.append((min(last, now - (waited - before)), now))
            before, last = waited, now

    watching = asyncio.ensure_future(watch())
    try:
        yield found
    finally:
        watching.cancel()


def _waited(schedstat: Path) -> float:
    """Seconds that a thread was ready to run and did not; 0 where the kernel does not say."""
    return int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0


@asynccontextmanager
async def _router(folder: Path, engine: int) -> AsyncIterator[tuple[int, int]]:
    """Starts a router. Returns its port and process."""
    members = {"pool": "bench", "replicas": [{"id": "bench-0", "url": f"http://127.0.0.1:{engine}"}]}
    (folder / "members.json").write_text(json.dumps(members))
    config = {
        "pool": "bench", "listen": {"port": 0}, "membershipFile": str(folder / "members.json"),
        "model": {"name": MODEL, "modelFolder": "builtin://tiny-chat", "maxLength": CONTEXT}, "seed": 1,
        "limits": {"maxBodyBytes": 16 << 20, "maxBufferedBytes": 256 << 20},
    }  # fmt: skip
    (folder / "router.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "plumage_router", "--config", str(folder / "router.json")]
    log = (folder / "router.log").open("wb")
    process = _start(command, log)
    try:
        port = await _port(folder / "router.log", process)
        with _undisturbed(process.pid):
            yield port, process.pid
    finally:
        process.terminate()
        process.wait(TIMEOUT)
        log.close()


@contextmanager
def _undisturbed(router: int) -> Iterator[None]:
    """Runs the router on one core and this process on another, with priority over other processes if that is allowed.
    Otherwise their work would disturb the measurement."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(router, {cores[0]})
    os.sched_setaffinity(0, {cores[-1]})
    with suppress(PermissionError):
        for process in (router, 0):
            os.sched_setscheduler(process, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, before)


def _start(command: list[str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*GUARDED, *command], stdout=log, stderr=log)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that the system chose, from the router's log."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        rest = _read(log).partition("listening on 127.0.0.1:")[2]
        if rest:
            return int(rest.partition(",")[0].split()[0])
        await asyncio.sleep(0.05)
    raise ConfigurationError(f"the router did not start:\n{_read(log)}")


async def _small(port: int, seconds: float) -> list[tuple[float, float] | None]:
    """The planned time and the end of each request; None for one that failed."""
    times: list[tuple[float, float] | None] = []
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    began = time.perf_counter()

    async def one(due: float) -> None:
        reader, writer = await free.get()
        try:
            async with asyncio.timeout(TIMEOUT):
                status = await _ask(reader, writer, "/v1/completions", _SMALL)
            times.append((due, time.perf_counter()) if status == 200 else None)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            times.append(None)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        free.put_nowait((reader, writer))

    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * RATE)):
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due))
    while not free.empty():
        free.get_nowait()[1].close()
    return times


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> int:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(answer.split()[1])


@asynccontextmanager
async def _hostile(setting: Setting, port: int) -> AsyncIterator[Counter[str]]:
    """Sends hostile bodies from a process of its own. Yields the statuses of their answers, complete at the end."""
    statuses: Counter[str] = Counter()
    if setting.hostile is None:
        yield statuses
        return
    [name] = [name for name, hostile in BODIES.items() if hostile is setting.hostile]
    out = setting.folder / "statuses"
    command = [sys.executable, "-m", __name__, name, str(port), str(out)]
    process = _start(command)
    try:
        deadline = time.monotonic() + TIMEOUT
        while not out.exists() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield statuses
    finally:
        process.kill()
        process.wait(TIMEOUT)
    statuses.update(_read(out).split())


async def _flood(hostile: Hostile, port: int, out: Path) -> None:
    body = hostile.make()
    with out.open("a", buffering=1) as file:
        await asyncio.gather(*(_repeat(hostile.path, body, port, file.write) for _ in range(hostile.clients)))


async def _repeat(path: str, body: bytes, port: int, note: Callable[[str], object]) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status = await _ask(reader, writer, path, body)
            note(f"{status}\n")
            writer.close()
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(_flood(BODIES[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3])))
