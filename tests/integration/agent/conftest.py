"""Fixtures of the agent's tests: a real directory server, simulated engines as processes, and a ZMQ publisher that
speaks as vLLM does and can lose, repeat and reorder messages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from support import forks
from support.ports import free_port

from plumage.directory.server.local_server import LocalServer
from plumage.models import resolve

MODEL = "tiny"


class FaultyPublisher:
    """`publish` sends and stores a batch, `lose` only stores it, and `send` sends a stored batch again. `kept` bounds
    the replay."""

    def __init__(self, folder: Path, kept: int = 10_000, replay: bool = True) -> None:
        self.endpoint, self.replay_endpoint = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.replays = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._next = 0
        self._subscribed = False
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)  # on the wire the same as PUB; it also reports subscriptions
        self._pub.bind(self.endpoint)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve if replay else self._stop.wait)
        self._thread.start()

    def subscribed(self) -> bool:
        """Whether a subscriber is connected. Earlier messages reach nobody."""
        with suppress(zmq.Again):
            self._subscribed = self._pub.recv(zmq.NOBLOCK).startswith(b"\x01")
        return self._subscribed

    def lose(self, *events: dict[str, Any]) -> int:
        seq, self._next = self._next, self._next + 1
        self._kept.append((seq, msgspec.msgpack.encode([time.time(), events, 0])))
        return seq

    def publish(self, *events: dict[str, Any]) -> int:
        seq = self.lose(*events)
        self._send(*self._kept[-1])
        return seq

    def send(self, seq: int) -> None:
        self._send(seq, next(payload for number, payload in self._kept if number == seq))

    def _send(self, seq: int, payload: bytes) -> None:
        self._pub.send_multipart([b"kv@pod", seq.to_bytes(8, "big"), payload])

    def send_raw(self, *frames: bytes) -> None:
        self._pub.send_multipart(list(frames))

    def _serve(self) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.set_hwm(0)
        router.bind(self.replay_endpoint)
        while not self._stop.is_set():
            if router.poll(20):
                client, _, start = router.recv_multipart()
                self.replays += 1
                for seq, payload in list(self._kept):
                    if seq >= int.from_bytes(start, "big"):
                        router.send_multipart([client, b"", seq.to_bytes(8, "big"), payload])
                router.send_multipart([client, b"", b"\xff" * 8, b""])
        router.close(linger=100)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._pub.close(linger=0)
        self._context.term()


@pytest.fixture
def start_publisher(tmp_path: Path) -> Iterator[Callable[..., FaultyPublisher]]:
    """Starts publishers on the same two endpoints, one after the other, as an engine and its restarts do."""
    started: list[FaultyPublisher] = []

    def start(**options: Any) -> FaultyPublisher:
        started.append(FaultyPublisher(tmp_path, **options))
        return started[-1]

    yield start
    for publisher in started:
        if not publisher._pub.closed:
            publisher.close()


@pytest.fixture(scope="module")
def directory() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


class Engine:
    """A simulated engine as a process of its own, on the wall clock."""

    def __init__(self, folder: Path, port: int, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.url = f"http://127.0.0.1:{port}"
        self.events, self.replay = f"ipc://{folder}/e", f"ipc://{folder}/r"
        self._config = folder / "engine.json"
        base = {"model": MODEL, "modelFolder": str(resolve("builtin://tiny-chat")), "port": port, "cacheBlocks": 2000}
        self._config.write_text(
            json.dumps({**base, "eventsEndpoint": self.events, "replayEndpoint": self.replay, **settings})
        )
        self._process: forks.Fork | None = None

    def start(self) -> Engine:
        with open(os.devnull, "wb") as nowhere:
            self._process = forks.start("plumage_engine.simulator", f"--config={self._config}", output=nowhere)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=1).status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError("the engine did not start")

    def ask(self, prompt: str, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, **fields}
        reply = httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)
        assert reply.status_code == 200, reply.text
        return dict(reply.json()["usage"])

    def stats(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/v1/plumage/stats", timeout=30).raise_for_status().json())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """For tests that neither fill nor stop it."""
    engine = Engine(tmp_path_factory.mktemp("shared"), free_port())
    try:
        yield engine.start()
    finally:
        engine.kill()


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(**settings: Any) -> Engine:
        engines.append(Engine(tmp_path / f"engine-{len(engines)}", free_port(), **settings))
        return engines[-1].start()

    yield make
    for engine in engines:
        engine.kill()


class StockEngine:
    """The HTTP API that an agent sees of a vLLM without the plugin: /metrics, and 404 for other paths."""

    def __init__(self) -> None:
        self.running, self.steps, self.working = 0, 0, False
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = owner.metrics().encode() if self.path == "/metrics" else b'{"detail":"Not Found"}'
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def metrics(self) -> str:
        self.steps += self.working
        return (
            f'vllm:num_requests_running{{engine="0",model_name="a b"}} {self.running}.0\n'
            f'vllm:num_requests_waiting{{engine="0"}} 0.0\nvllm:iteration_tokens_total_count {self.steps}\n'
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def stock() -> Iterator[StockEngine]:
    engine = StockEngine()
    yield engine
    engine.close()


class AgentProcess:
    def __init__(self, folder: Path, **settings: Any) -> None:
        path = folder / f"agent-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(settings))
        self._output = path.with_suffix(".log")
        with self._output.open("wb") as output:
            self.process = forks.start("plumage_engine.agent", f"--config={path}", output=output)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Waits until it ends by itself. Returns its status and its output."""
        return self.process.wait(60), self._output.read_text()


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    started: list[AgentProcess] = []

    def start(**settings: Any) -> AgentProcess:
        started.append(AgentProcess(tmp_path, **settings))
        return started[-1]

    yield start
    for agent in started:
        agent.process.kill()
        agent.process.wait(60)


def settings_of(
    directory: LocalServer, pool: str, engine: StockEngine, publisher: Any, port: int, **changes: Any
) -> dict[str, Any]:
    return {
        "pool": pool, "replica": "vllm-0", "model": "tiny", "modelFolder": "builtin://tiny-chat",
        "engineUrl": engine.url, "eventsEndpoint": publisher.endpoint, "replayEndpoint": publisher.replay_endpoint,
        "directoryUrl": directory.url, "listen": {"port": port}, "heartbeatSeconds": 0.2, "loadSeconds": 0.05,
        "stalledSeconds": 0.5, **changes,
    }  # fmt: skip


async def answers(url: str, status: int = 200) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(1200):
            with suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == status:
                    return
            await asyncio.sleep(0.05)
    pytest.fail(f"{url} did not answer {status}")
