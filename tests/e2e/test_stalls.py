"""A replica that is lost for good, and one that hangs: real processes that nobody restarts.

The stall is real: the engine's device takes minutes for a prompt of 20,000 tokens (its cost of a query-key pair is set
so), while the HTTP side goes on answering /health and /metrics. Only the agent's check of the steps shows it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.ports import free_ports

from plumage.directory.schema import BEAT_TTL, Keys
from plumage.directory.server.local_server import LocalServer
from plumage.models import resolve

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]

POOL, MODEL = "stalls", "tiny"
ADMIN = {"authorization": "Bearer admin"}
STALLED_SECONDS = 1.0
LOOK_SECONDS = 1.2 + 0.1 + 6.0  # a router reads heartbeats, then looks at what it read; the rest is for a busy machine
POISON = [5] * 20_000
WORDS = "lorem ipsum dolor sit amet " * 60


class Fleet:
    """Two engines with an agent each, a directory's server and a router, all without a supervisor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = ("a", "b")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        *ports, router = free_ports(5)
        self.engines = {name: f"http://127.0.0.1:{port}" for name, port in zip(self.names, ports[:2], strict=True)}
        self.agents = {name: f"http://127.0.0.1:{port}" for name, port in zip(self.names, ports[2:], strict=True)}
        self.router = f"http://127.0.0.1:{router}"
        self._exits = ExitStack()

    def __enter__(self) -> Fleet:
        self.server = self._exits.enter_context(LocalServer())
        self._exits.callback(self._end)
        (self.folder / "admin.key").write_text("admin\n")
        for name in self.names:
            self._start(f"engine-{name}", "plumage_engine.simulator", self._engine(name))
            self._start(f"agent-{name}", "plumage_engine.agent", self._agent(name))
        members = [{"id": n, "url": self.engines[n], "agent": self.agents[n], "state": "Ready"} for n in self.names]
        (self.folder / "members.json").write_text(json.dumps({"pool": POOL, "replicas": members}))
        self._start("router", "plumage_router", self._router())
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(30)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(30)

    def _start(self, name: str, module: str, settings: dict[str, Any]) -> None:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(settings))
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", module, "--config", str(path)]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))

    def _sockets(self, name: str) -> dict[str, str]:
        return {f"{kind}Endpoint": f"ipc://{self.folder}/{name}.{kind}" for kind in ("events", "replay")}

    def _engine(self, name: str) -> dict[str, Any]:
        device = {"preset": "gpu", "timeScale": 0.2, "overrides": {"pair": 2e-5}}
        return {"model": MODEL, "modelFolder": str(resolve("builtin://tiny-chat")), "port": _port(self.engines[name]),
                "device": device, "maxBatchedTokens": 32_768, "answerTokens": 8, **self._sockets(name)}  # fmt: skip

    def _agent(self, name: str) -> dict[str, Any]:
        return {"pool": POOL, "replica": name, "model": MODEL, "modelFolder": "builtin://tiny-chat",
                "engineUrl": self.engines[name], "directoryUrl": self.server.url, "warmup": {"enabled": False},
                "listen": {"port": _port(self.agents[name])}, "stalledSeconds": STALLED_SECONDS,
                **self._sockets(name)}  # fmt: skip

    def _router(self) -> dict[str, Any]:
        return {"pool": POOL, "model": {"name": MODEL, "modelFolder": "builtin://tiny-chat"},
                "membershipFile": str(self.folder / "members.json"), "listen": {"port": _port(self.router)},
                "directoryUrl": self.server.url, "policy": {"name": "RoundRobin"},
                "auth": {"adminKeyFile": str(self.folder / "admin.key")}}  # fmt: skip

    async def replicas(self, http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
        """The router's word on each."""
        reply = await http.get(f"{self.router}/plumage/v1/status", headers=ADMIN)
        return {replica["id"]: replica for replica in reply.raise_for_status().json()["replicas"]}


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture
def fleet(runtime: Path, tmp_path: Path) -> Iterator[Fleet]:
    folder = runtime / tmp_path.name[-8:]
    folder.mkdir()
    with Fleet(folder) as fleet:
        yield fleet


@asynccontextmanager
async def ready(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    """A client, once the router knows both caches."""
    async with httpx.AsyncClient(timeout=120.0) as http:

        async def whole() -> bool:
            found = await fleet.replicas(http)
            return len(found) == 2 and all(r["cacheKnown"] and r["why"] is None for r in found.values())

        await until(whole)
        yield http


async def until(holds: Callable[[], Awaitable[Any]], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if await holds():
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


def _server_time(client: redis.Redis) -> float:
    """Seconds on the clock by which heartbeats expire. Read before a request, so a slow test counts as early."""
    seconds, micros = client.time()
    return float(seconds + micros / 1e6)


def body(prompt: str | list[int], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, **more}


async def test_blocks_of_a_dead_replica_are_forgotten_within_the_ttl(fleet: Fleet) -> None:
    async with ready(fleet) as http:
        prompts = [f"{number} " + WORDS for number in range(3)]
        for prompt in prompts:  # past the router: only this engine holds them
            (await http.post(f"{fleet.engines['a']}/v1/completions", json=body(prompt))).raise_for_status()

        async def matched(prompt: str) -> int:
            """Chunks of the prompt that the router believes to be held somewhere."""
            reply = await http.post(f"{fleet.router}/v1/completions", json=body(prompt))
            return int((await _explained(http, fleet, reply.raise_for_status()))["chunks"]["matched"])

        async def known() -> bool:
            metrics = (await http.get(f"{fleet.router}/metrics")).text
            (chunks,) = [line for line in metrics.splitlines() if line.startswith("plumage_router_mirror_chunks ")]
            return int(float(chunks.split()[1])) >= 3 * (len(WORDS) // 256 - 1)

        await until(known)
        assert await matched(prompts[0]) > 0
        fleet.kill("agent-a")
        fleet.kill("engine-a")
        with redis.Redis.from_url(fleet.server.url) as client:
            beat = Keys(POOL, "a").beat
            left = client.pttl(beat)
            assert 0 < left <= BEAT_TTL * 1000, "the server forgets it without anybody's help"

            expires = _server_time(client) + left / 1000
            looked, looks = _server_time(client), 0
            while (await fleet.replicas(http))["a"]["cacheKnown"]:
                looks += 1
                assert looked <= expires + LOOK_SECONDS, "an expired heartbeat is noticed at the next check"
                await asyncio.sleep(0.05)
                looked = _server_time(client)
            assert looks, "its blocks count until then"
            assert not client.exists(beat)
        assert await matched(prompts[1]) == 0, "no hit is predicted from a dead replica"
        assert (await fleet.replicas(http))["a"]["why"] is not None

        async def served() -> bool:  # a busy machine may keep the other engine from its health check for a moment
            return (await http.post(f"{fleet.router}/v1/completions", json=body(prompts[2]))).status_code == 200

        await until(served)


async def test_requests_without_a_first_byte_move_from_a_hanging_engine(fleet: Fleet) -> None:
    async with ready(fleet) as http:
        begun = asyncio.create_task(_stream(http, fleet, max_tokens=5000))
        sent: list[asyncio.Task[httpx.Response]] = []

        async def answering() -> bool:
            return any(replica["inFlight"] for replica in (await fleet.replicas(http)).values())

        await until(answering)
        await asyncio.sleep(1.0)  # its first bytes are out; RoundRobin sends the next ones to both
        found = await fleet.replicas(http)
        hanging = next(name for name in found if found[name]["inFlight"])
        poison = asyncio.create_task(http.post(f"{fleet.engines[hanging]}/v1/completions", json=body(POISON)))
        await asyncio.sleep(0.5)
        sent += [asyncio.create_task(_ask(http, fleet, f"{n} " + WORDS)) for n in range(8)]
        answers = await asyncio.gather(*sent)
        assert [answer.status_code for answer in answers] == [200] * 8
        assert all(answer.json()["choices"][0]["text"] for answer in answers)

        async def stalled() -> bool:
            return (await fleet.replicas(http))[hanging]["state"] == "Stalled"

        await until(stalled)
        stats = (await http.get(f"{fleet.agents[hanging]}/v1/plumage/stats")).json()
        assert stats["state"] == "Stalled"
        assert stats["running"] >= 1
        assert (await http.get(f"{fleet.engines[hanging]}/health")).status_code == 200
        records = [await _explained(http, fleet, answer) for answer in answers]
        assert hanging not in {record["replica"] for record in records}, "all were answered by the other"
        moved = [record for record in records if record["failures"]]
        assert moved, "RoundRobin sent half of them to the engine that hangs"
        assert {failure["replica"] for record in moved for failure in record["failures"]} == {hanging}
        assert not begun.done(), "a started answer is not retried elsewhere"
        assert not poison.done()
        for task in (begun, poison):
            task.cancel()
        await asyncio.gather(begun, poison, return_exceptions=True)


async def _ask(http: httpx.AsyncClient, fleet: Fleet, prompt: str) -> httpx.Response:
    return await http.post(f"{fleet.router}/v1/completions", json=body(prompt))


async def _explained(http: httpx.AsyncClient, fleet: Fleet, answer: httpx.Response) -> dict[str, Any]:
    """Where a request went at last, and what failed before."""
    reply = await http.get(f"{fleet.router}/plumage/v1/explain/{answer.headers['x-request-id']}", headers=ADMIN)
    record: dict[str, Any] = reply.raise_for_status().json()
    return record


async def _stream(http: httpx.AsyncClient, fleet: Fleet, max_tokens: int) -> int:
    """Reads a long answer to its end; the bytes it had."""
    size = 0
    asked = body("Give me everything.", stream=True, max_tokens=max_tokens, min_tokens=max_tokens, ignore_eos=True)
    async with http.stream("POST", f"{fleet.router}/v1/completions", json=asked) as reply:
        async for part in reply.aiter_bytes():
            size += len(part)
    return size
