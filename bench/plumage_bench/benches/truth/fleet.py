"""The processes of `truth`: a real vLLM with the plugin, its agent, a directory and a router, and their reports."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import zmq

from plumage.directory.server.local_server import LocalServer
from plumage.errors import PlumageError
from plumage.rendering import ByteTable, ModelFolder
from plumage_bench.ours import Ours
from plumage_bench.unsent_writer import UnsentWriter
from plumage_bench.vllm.server import Server, serving
from plumage_engine.agent.directory.event_publisher import EventPublisher
from plumage_engine.agent.directory.throttle import Throttle
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.kv_events import decode_batch

__all__ = ["Answer", "Fleet", "Setting", "agent_cost", "fleet"]

MODEL, POOL = "tiny", "truth"
_HIGHEST = 200_000  # event batches that are kept for the measurement of the agent
_UP_SECONDS = 120.0
_START_SECONDS = 900.0  # of vLLM; a busy machine needs longer
_END_SECONDS = 40.0  # a router waits thirty seconds for streams to end


OURS = Ours(runtime="VLLM")


@dataclass(frozen=True, slots=True)
class Setting:
    """name: in tables. arguments: of vLLM's command line. adapters: names and folders of LoRAs. ours: its manifest."""

    name: str
    arguments: Sequence[str]
    adapters: Mapping[str, Path] = field(default_factory=dict)
    ours: Ours = OURS


@dataclass(frozen=True, slots=True)
class Answer:
    """text: the answer. predicted: hit tokens that the router expected when it sent the request. found: those that the
    engine then had. tokens: of the prompt. chunks: of the rendered prompt."""

    text: str
    predicted: int
    found: int
    tokens: int
    chunks: int


class Fleet:
    """One engine with its agent, directory and router."""

    def __init__(self, url: str, key: str, agent_url: str, agent: psutil.Process, server: Server) -> None:
        self.events: list[bytes] = []
        self.server = server
        self._url, self._key, self._agent_url, self._agent = url, key, agent_url, agent
        self._count = 0
        self._http = httpx.AsyncClient(base_url=url, timeout=300, trust_env=False)

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Sends one request through the router. Returns the answer with the router's prediction."""
        self._count += 1
        name = f"truth-{self._count}"
        answer = await self._http.post(path, json={"model": MODEL, **body}, headers={"X-Request-Id": name})
        if answer.status_code != httpx.codes.OK:
            raise PlumageError(f"{path}: {answer.status_code} {answer.text[:300]}")
        explanation = await self._explanation(name)
        reply = answer.json()
        choice = reply["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        hits, tokens = explanation["hitTokens"], reply["usage"]["prompt_tokens"]
        return Answer(text or "", hits["predicted"], hits["actual"] or 0, tokens, explanation["chunks"]["prompt"])

    async def _explanation(self, name: str) -> dict[str, Any]:
        """The router's record of a request, which it completes a moment after the last byte of the answer."""
        for _ in range(100):
            found = await self._http.get(f"/plumage/v1/explain/{name}", headers={"X-Plumage-Admin-Key": self._key})
            explanation: dict[str, Any] = found.raise_for_status().json()
            if explanation["outcome"] != "Running":
                return explanation
            await asyncio.sleep(0.02)
        raise PlumageError(f"the router did not complete its record of {name}")

    async def close(self) -> None:
        await self._http.aclose()

    def agent_stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = httpx.get(f"{self._agent_url}/v1/plumage/stats", timeout=30).raise_for_status().json()
        return stats

    def engine_stats(self) -> dict[str, Any]:
        url = f"{self.server.url}/v1/plumage/stats"
        stats: dict[str, Any] = httpx.get(url, timeout=30).raise_for_status().json()
        return stats

    @property
    def agent_cpu(self) -> float:
        """CPU seconds of the agent's whole process so far."""
        spent = self._agent.cpu_times()
        return float(spent.user + spent.system)


@contextmanager
def fleet(setting: Setting, model: Path, folder: Path) -> Iterator[Fleet]:
    """A fleet for the time of a `with`, ready when its router would send to its engine. PlumageError if it does not
    become ready."""
    folder.mkdir()
    with ExitStack() as stack:
        directory = stack.enter_context(LocalServer())
        ports = _free_ports(3)
        server = stack.enter_context(
            serving(model, ports[0], folder / "vllm.log", *_engine(setting, folder), seconds=_START_SECONDS)
        )
        agent = _launch(stack, "plumage_engine.agent", _agent(setting, model, folder, directory.url, ports), folder)
        key = secrets.token_hex()
        (folder / "admin").write_text(key + "\n")
        (folder / "members").write_text(json.dumps(_members(ports)))
        _launch(stack, "plumage_router", _router(setting, model, folder, directory.url, ports[2]), folder)
        url = f"http://127.0.0.1:{ports[2]}"
        made = Fleet(url, key, f"http://127.0.0.1:{ports[1]}", psutil.Process(agent.pid), server)
        _wait(f"{made._agent_url}/readyz", folder)
        _wait(f"{url}/health", folder)
        stack.enter_context(_listening(f"ipc://{folder}/events", made.events))
        yield made


def _engine(setting: Setting, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    """Arguments and environment of vLLM with the plugin. Events go over ipc."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    arguments = (
        f"--kv-events-config={json.dumps(events)}",
        "--enable-prompt-tokens-details",
        "--max-model-len=4096",
        *setting.arguments,
    )
    return arguments, {"PLUMAGE_VLLM": json.dumps(setting.ours.plugin()), "VLLM_PLUGINS": "plumage"}


def _agent(setting: Setting, model: Path, folder: Path, directory: str, ports: Sequence[int]) -> dict[str, Any]:
    return {
        "pool": POOL, "replica": "vllm-0", "model": MODEL, "modelFolder": str(model),
        "engineUrl": f"http://127.0.0.1:{ports[0]}", "eventsEndpoint": f"ipc://{folder}/events",
        "replayEndpoint": f"ipc://{folder}/replay", "directoryUrl": directory, "listen": {"port": ports[1]},
    }  # fmt: skip


def _members(ports: Sequence[int]) -> dict[str, Any]:
    urls = {"url": f"http://127.0.0.1:{ports[0]}", "agent": f"http://127.0.0.1:{ports[1]}"}
    return {"pool": POOL, "replicas": [{"id": "vllm-0", "state": "Ready", **urls}]}


def _router(setting: Setting, model: Path, folder: Path, directory: str, port: int) -> dict[str, Any]:
    named = {"name": MODEL, "modelFolder": str(model), "adapters": list(setting.adapters)}
    return setting.ours.router(
        str(model), directory, port, pool=POOL, model=named, membershipFile=str(folder / "members"),
        auth={"adminKeyFile": str(folder / "admin")},
    )  # fmt: skip


def _launch(stack: ExitStack, module: str, config: Mapping[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    path = folder / f"{module}.json"
    path.write_text(json.dumps(config))
    output = stack.enter_context((folder / f"{module}.log").open("wb"))
    command = [sys.executable, "-m", module, "--config", str(path)]
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_SECONDS)


def _wait(url: str, folder: Path) -> None:
    until = time.monotonic() + _UP_SECONDS
    with httpx.Client(timeout=5, trust_env=False) as http:
        while time.monotonic() < until:
            with suppress(httpx.TransportError):
                if http.get(url).status_code == httpx.codes.OK:
                    return
            time.sleep(0.1)
    logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in folder.glob("plumage*.log"))
    raise PlumageError(f"{url} did not answer 200 within {_UP_SECONDS:.0f} s:\n{logs}")


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def _listening(endpoint: str, events: list[bytes]) -> Iterator[None]:
    """Receives the engine's event batches beside its agent. `agent_cost` measures with them."""
    stop = threading.Event()

    def listen() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket_ = context.socket(zmq.SUB)
        socket_.subscribe(b"")
        socket_.connect(endpoint)
        while not stop.is_set() and len(events) < _HIGHEST:
            if socket_.poll(200):
                events.append(socket_.recv_multipart()[2])
        context.destroy(linger=0)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30.0)


def agent_cost(events: Sequence[bytes], model: Path) -> tuple[float, int]:
    """CPU seconds of an agent for these batches (decode, index, hash, publish, without sockets), and their block
    events. The shortest of three runs counts: other work on the machine only adds time, and a real agent runs for
    weeks."""
    table = ByteTable.from_tokenizer_json(ModelFolder.load(model).tokenizer_json)
    return min(_replayed(events, table) for _ in range(3))


def _replayed(events: Sequence[bytes], table: ByteTable) -> tuple[float, int]:
    holdings = EventPublisher(CacheIndex(MODEL, table), Throttle(5_000.0), UnsentWriter())
    started = time.thread_time()
    for payload in events:
        holdings.apply(decode_batch(payload))
        holdings.flush()
    spent = time.thread_time() - started
    counted = holdings.index.counters
    return spent, counted.stored + counted.removed
