"""The processes of `quality`: simulated engines, and before them our router with its directory and agents, our router
by round robin, or another router."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plumage.directory.server.local_server import LocalServer
from plumage.errors import ConfigurationError
from plumage.settings.addresses import DirectoryAddress, EngineSockets
from plumage.settings.agent import agent_settings
from plumage.settings.agent_config import AgentListen
from plumage.settings.simulator import simulator_settings
from plumage_bench.benches.quality.texts import MODEL_FOLDER
from plumage_bench.benches.router.peers import Peer, Place
from plumage_bench.guarded import GUARDED
from plumage_bench.ours import Ours
from plumage_cli.local.processes.ports import free_ports

__all__ = ["Fleet", "Router", "simulator_file"]

_UP: Final = 60.0  # seconds for a process to answer
_END: Final = 10.0
_WARM: Final = b'{"model": "tiny-chat", "max_tokens": 1, "messages": [{"role": "user", "content": "ready?"}]}'
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Router:
    """port: the clients'. process: the router's."""

    port: int
    process: subprocess.Popen[bytes]


def simulator_file(ours: Ours, sockets: EngineSockets, port: int, seed: int) -> dict[str, Any]:
    """The settings file of a simulated engine: a pool's, but open to every router and with vLLM's route that empties
    the cache."""
    settings = simulator_settings(ours.pool(), sockets, model_folder=MODEL_FOLDER, host=_HOST, port=port, seed=seed)
    return {**settings.written(without=("admin_token_file", "api_key_file")), "devMode": True}


class Fleet:
    """`count` simulated engines of a manifest. folder: for sockets, so its path is short. Everything ends with the
    `with` block. ConfigurationError if a process does not start."""

    def __init__(self, ours: Ours, count: int, folder: Path, seed: int) -> None:
        self._ours, self._count, self._folder, self._seed = ours, count, folder, seed
        self._stack = ExitStack()
        self._urls: list[str] = []

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def ours(self) -> Iterator[Router]:
        """Our router, with a new directory and new agents, as in a pool."""
        with ExitStack() as stack:
            directory = stack.enter_context(LocalServer(self._folder / "directory"))
            ports = _ports(self._count + 1)
            members = self._members(None, state="Warming")  # else agents would wait for each other
            for number, port in enumerate(ports[1:]):
                config = self._agent(number, port, directory.url, members)
                self._launch(stack, "plumage_engine.agent", config, f"agent-{number}")
            for port in ports[1:]:
                self._await(f"http://{_HOST}:{port}/readyz")
            self._members(ports)
            yield self._router(stack, self._ours, directory.url, ports[0], members)

    @contextmanager
    def round_robin(self) -> Iterator[Router]:
        """Our router without any knowledge of caches."""
        with ExitStack() as stack:
            ours = Ours({**self._ours.overrides, "router.policy": "RoundRobin"})
            yield self._router(stack, ours, None, _ports(1)[0], self._members(None))

    @contextmanager
    def peer(self, peer: Peer, programs: Path) -> Iterator[Router]:
        """Another router, with its manual's settings."""
        with ExitStack() as stack:
            port, metrics = _ports(2)
            place = Place(programs / peer.program, port, metrics, tuple(self._urls), self._folder)
            command = list(map(str, peer.command(place)))
            router = Router(port, self._spawn(stack, command, peer.program, wait=0.3))
            self._begin(router, peer.name)
            yield router

    # -- inside -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for number, port in enumerate(_ports(self._count)):
            config = simulator_file(self._ours, self._sockets(number), port, self._seed + number)
            self._launch(self._stack, "plumage_engine.simulator", config, f"engine-{number}")
            self._urls.append(f"http://{_HOST}:{port}")
        for url in self._urls:
            self._await(f"{url}/health")

    def _sockets(self, number: int) -> EngineSockets:
        at = f"ipc://{self._folder}"
        return EngineSockets(f"{at}/events-{number}", f"{at}/replay-{number}", "/unused", "/unused")

    def _agent(self, number: int, port: int, directory: str, members: Path) -> dict[str, Any]:
        settings = agent_settings(
            self._ours.pool(),
            self._sockets(number),
            model_folder=MODEL_FOLDER,
            engine_url=self._urls[number],
            directory=DirectoryAddress(directory),
            listen=AgentListen(host=_HOST, port=port),
            members=members,
        )
        without = ("engine_token_file", "engine_api_key_file", "token_file")
        return {**settings.written(without=without), "replica": f"ours-{number}"}

    def _members(self, ports: Sequence[int] | None, state: str = "Ready") -> Path:
        """ports: the router's, then the agents'; None without agents."""
        replicas = [{"id": f"ours-{n}", "url": url, "state": state} for n, url in enumerate(self._urls)]
        for number, port in enumerate(ports[1:] if ports else ()):
            replicas[number]["agent"] = f"http://{_HOST}:{port}"
        path = self._folder / "members.json"
        path.write_text(json.dumps({"pool": "ours", "replicas": replicas}))
        return path

    def _router(self, stack: ExitStack, ours: Ours, directory: str | None, port: int, members: Path) -> Router:
        config = ours.router(MODEL_FOLDER, directory, port, membershipFile=str(members), seed=self._seed)
        router = Router(port, self._launch(stack, "plumage_router", config, "router"))
        self._begin(router, "our router")
        return router

    def _begin(self, router: Router, name: str) -> None:
        """Waits until a router answers a chat, then empties all caches."""
        url, deadline = f"http://{_HOST}:{router.port}/v1/chat/completions", time.monotonic() + _UP
        while not _answers(url, _WARM):
            if time.monotonic() > deadline or router.process.poll() is not None:
                raise ConfigurationError(f"{name} did not answer within {_UP:g} s:\n{self._said()}")
            time.sleep(0.1)
        for engine in self._urls:
            if not _answers(f"{engine}/reset_prefix_cache", b""):
                raise ConfigurationError(f"the engine {engine} did not empty its cache")
            if held := self._cached(engine):
                raise ConfigurationError(f"the engine {engine} still has {held} cached blocks after a reset")

    @staticmethod
    def _cached(engine: str) -> int:
        with urllib.request.urlopen(f"{engine}/v1/plumage/stats", timeout=10) as answer:
            return int(json.load(answer)["cachedBlocks"])

    def _launch(self, stack: ExitStack, module: str, config: Mapping[str, Any], name: str) -> subprocess.Popen[bytes]:
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(config))
        return self._spawn(stack, [sys.executable, "-m", module, "--config", str(path)], name)

    def _spawn(
        self, stack: ExitStack, command: Sequence[str], name: str, wait: float = _END
    ) -> subprocess.Popen[bytes]:
        """wait: seconds for the process to end by itself."""
        output = stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [*GUARDED, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        stack.callback(_end, process, wait)
        return process

    def _await(self, url: str) -> None:
        deadline = time.monotonic() + _UP
        while not _answers(url):
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{url} did not answer within {_UP:g} s:\n{self._said()}")
            time.sleep(0.05)

    def _said(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-500:]}" for log in logs)


def _answers(url: str, data: bytes | None = None) -> bool:
    """Whether it answers 200. data: of a POST."""
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _ports(count: int) -> list[int]:
    return free_ports(count, (), start=secrets.randbelow(12_000))


def _end(process: subprocess.Popen[bytes], wait: float) -> None:
    process.terminate()
    try:
        process.wait(wait)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
