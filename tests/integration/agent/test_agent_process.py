"""The agent as its own process, and beside an engine without Plumage routes, which is all that a stock vLLM offers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ports import free_port

from plumage.directory.connection import connect
from plumage.directory.mirror import Mirror
from plumage.directory.schema import Keys, State
from plumage.directory.server import LocalServer
from plumage.directory.sync import DirectorySync
from plumage.hashing.chunks import chain, seed
from plumage.models import resolve
from plumage_engine.agent.tokenizer import read_tokenizer

pytestmark = pytest.mark.redis


class StockEngine:
    """What an agent sees of a vLLM without the plugin over HTTP: /metrics and 404 for the rest."""

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
        command = [sys.executable, "-m", "plumage_engine.agent", "--config", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    started: list[AgentProcess] = []

    def start(**settings: Any) -> AgentProcess:
        started.append(AgentProcess(tmp_path, **settings))
        return started[-1]

    yield start
    for agent in started:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.communicate()


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


def prompt_event(text: str, key: int) -> dict[str, Any]:
    """One block that holds a whole prompt."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve("builtin://tiny-chat") / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    fields = {"parent_block_hash": None, "block_size": len(ids), "medium": "GPU", "lora_id": None, "lora_name": None}
    return {"type": "BlockStored", "block_hashes": [key], "token_ids": ids, **fields}


async def test_beside_a_stock_engine_until_sigterm(directory, stock, start_publisher, start_agent) -> None:
    publisher, port = start_publisher(), free_port()
    text = "held by a stock engine, told by its events alone; " * 20
    publisher.publish(prompt_event(text, 1))
    agent = start_agent(**settings_of(directory, "stock", stock, publisher, port))
    await answers(f"http://127.0.0.1:{port}/readyz")
    mirror = Mirror(1000)
    async with DirectorySync(directory.url, pool="stock", mirror=mirror, poll_seconds=0.05) as sync:
        sync.set_replicas({"vllm-0": 0})
        expected = chain(text.encode(), seed("tiny"))
        await until(lambda: mirror.match(expected).get(0, (0, 0))[0] == len(expected))
        stock.running = 1
        await until(lambda: sync.view("vllm-0").state is State.STALLED)
        stock.working = True
        await until(lambda: sync.view("vllm-0").state is State.READY)
        publisher.publish({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"})
        await until(lambda: not mirror.match(expected))
    code, output = await asyncio.to_thread(agent.end)
    assert code == 0, output
    assert "Traceback" not in output
    client = connect(directory.url)
    assert await client.exists(Keys("stock", "vllm-0").beat) == 0
    await client.aclose()


async def test_the_table_survives_the_agent(directory, stock, start_publisher, start_agent, tmp_path: Path) -> None:
    """The replay no longer reaches back to the first prompt, and a stock engine has no snapshot."""
    publisher, port = start_publisher(kept=2), free_port()
    text = "known only to the agent that saw it being cached; " * 20
    settings = settings_of(directory, "table", stock, publisher, port, stateFile=str(tmp_path / "table"))
    publisher.publish(prompt_event(text, 1))
    mirror, expected = Mirror(1000), chain(text.encode(), seed("tiny"))
    async with DirectorySync(directory.url, pool="table", mirror=mirror, poll_seconds=0.05) as sync:
        sync.set_replicas({"vllm-0": 0})
        first = start_agent(**settings)
        await until(lambda: mirror.match(expected).get(0, (0, 0))[0] == len(expected))
        code, output = await asyncio.to_thread(first.end)
        assert code == 0, output
        epoch = sync.view("vllm-0").epoch
        publisher.publish(prompt_event("something else altogether; " * 20, 2))
        start_agent(**settings)
        await until(lambda: sync.view("vllm-0").epoch not in ("", epoch))
        await until(lambda: mirror.match(expected).get(0, (0, 0))[0] == len(expected))


async def test_a_second_agent_of_a_replica_takes_over(directory, stock, start_publisher, start_agent) -> None:
    publisher, ports = start_publisher(), [free_port(), free_port()]
    first = start_agent(**settings_of(directory, "twice", stock, publisher, ports[0]))
    await answers(f"http://127.0.0.1:{ports[0]}/readyz")
    start_agent(**settings_of(directory, "twice", stock, publisher, ports[1]))
    await answers(f"http://127.0.0.1:{ports[1]}/readyz")
    assert await asyncio.to_thread(first.process.wait, 60) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heartbeatSecond": 1}, "heartbeatSecond"),
        ({"modelFolder": "builtin://no-such"}, "builtin://tiny-chat"),
        ({"listen": {"host": "0.0.0.0", "port": 1}}, "tokenFile"),
        ({"tokenFile": "/nonexistent/token"}, "/nonexistent/token"),
        ({"directoryUrl": "http://x"}, "unix:///path"),
        ({"eventsEndpoint": "nonsense"}, "eventsEndpoint"),
    ],
    ids=["typo", "model", "open", "token", "directory", "events"],
)
def test_a_configuration_that_cannot_work_says_what_to_change(
    directory, stock, start_publisher, start_agent, changes: dict[str, Any], says: str
) -> None:
    agent = start_agent(**settings_of(directory, "bad", stock, start_publisher(), 0, **changes))
    output, _ = agent.process.communicate(timeout=60)
    assert agent.process.returncode == 2
    assert says in output
    assert "Traceback" not in output


def test_a_port_in_use_is_named(directory, stock, start_publisher, start_agent) -> None:
    used = int(stock.url.rpartition(":")[2])
    agent = start_agent(**settings_of(directory, "port", stock, start_publisher(), used))
    output, _ = agent.process.communicate(timeout=60)
    assert agent.process.returncode == 2
    assert f"127.0.0.1:{used}" in output


def test_the_builtin_model_loses_nothing() -> None:
    assert read_tokenizer("builtin://tiny-chat").lossy == ()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("did not happen within 40 s")
