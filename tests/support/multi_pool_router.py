"""A router of several pools in the test's process, and simulated engines in processes of their own."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from support import forks
from support.ports import free_port

from plumage.models import resolve
from plumage.settings.router_config import MultiPoolConfig
from plumage_router.multi_pool.server import MultiPoolServer

__all__ = ["ADMIN", "Gateway", "at", "await_health", "simulators", "words", "write"]

ADMIN = {"authorization": "Bearer admin-key"}


def write(path: Path, content: Any) -> None:
    """Replaces the file by a new one of the same name, as the supervisor and the kubelet do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)


class Gateway:
    """A router of several pools, its file and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pools: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {}
        (folder / "admin").write_text("admin-key\n")

    def add(self, pool: str, engines: dict[str, str], *names: str, model: str = "", **more: Any) -> None:
        """A pool whose engines, by id, have these addresses. names: that clients use; the model's own if none."""
        own = model or pool
        self.members(pool, engines)
        self.pools[pool] = {
            "pool": pool, "names": list(names) or [own], "membershipFile": str(self.folder / f"{pool}.json"),
            "model": {"name": own, "modelFolder": "builtin://tiny-chat", **more.pop("model_more", {})},
            "policy": {"name": "RoundRobin"}, "seed": 1, **more,
        }  # fmt: skip

    def members(self, pool: str, engines: dict[str, str]) -> None:
        lines = [{"id": name, "url": url, "agent": None, "state": "Ready"} for name, url in engines.items()]
        write(self.folder / f"{pool}.json", {"pool": pool, "replicas": lines})

    def save(self) -> Path:
        path = self.folder / "gateway.json"
        write(path, self.content)
        return path

    @property
    def content(self) -> dict[str, Any]:
        auth = {"adminKeyFile": str(self.folder / "admin")}
        pools = list(self.pools.values())
        return {"gateway": "gateway", "listen": {"port": 0}, "auth": auth, "pools": pools, **self.settings}

    async def start(self) -> None:
        path = self.save()
        self.router = MultiPoolServer(MultiPoolConfig.model_validate(self.content), path, name="gateway-0")
        await self.router.start()
        url = f"http://{self.router.addresses[0]}"
        self.http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)

    async def stop(self) -> None:
        await self.http.aclose()
        await self.router.stop(drain_seconds=0)

    async def chat(self, model: Any, content: str = "hello", **more: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
        return await self.http.post("/v1/chat/completions", json=body)

    async def models(self) -> list[str]:
        listed = (await self.http.get("/v1/models")).raise_for_status().json()["data"]
        return [one["id"] for one in listed]


def at(engine: Any) -> dict[str, str]:
    return {engine.name: f"http://127.0.0.1:{engine.port}"}


def words(answer: httpx.Response) -> str:
    """What a stream said."""
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@contextmanager
def simulators(*models: str) -> Iterator[dict[str, forks.Fork]]:
    """A real simulated engine for each model, by its address."""
    with ExitStack() as stack:
        started = {}
        # A short path: a Unix socket's is limited to 107 bytes.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sim-")))
        for model in models:
            port = free_port()
            config = {"model": model, "modelFolder": str(resolve("builtin://tiny-chat")), "port": port,
                      "eventsEndpoint": f"ipc://{folder}/{model}.e", "replayEndpoint": f"ipc://{folder}/{model}.r",
                      "device": {"preset": "gpu", "timeScale": 0.02}, "answerTokens": 4}  # fmt: skip
            path = folder / f"engine-{model}.json"
            path.write_text(json.dumps(config))
            process = forks.start("plumage_engine.simulator", f"--config={path}")
            stack.callback(process.wait, 60)
            stack.callback(process.kill)  # the last that was put on the stack is the first that is called
            started[f"http://127.0.0.1:{port}"] = process
        for url, process in started.items():
            await_health(url, process)
        yield started


def await_health(url: str, process: forks.Fork) -> None:
    deadline, seen = time.monotonic() + 120, "nothing"
    while time.monotonic() < deadline:
        assert process.poll() is None, "the engine ended"
        try:
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError as error:
            seen = repr(error)
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer: {seen}")
