"""A pool in memory and its autoscaling loop. Its pods are HTTP servers that report as routers and agents do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from support.fleets import START, agent, observed, pod, router
from support.ports import free_ports

from plumage_operator.autoscaling import AutoscalingLoop, FleetClient
from plumage_operator.autoscaling import pods as ports
from plumage_operator.cache.store import PoolKey
from plumage_operator.observed import Observed

KEY: PoolKey = ("models", "chat")
SPEC: dict[str, Any] = {
    "autoscaling": {
        "minReplicas": 1,
        "maxReplicas": 10,
        "metrics": [{"type": "TotalTokensPerSecond", "target": 100}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
}


@dataclass
class World:
    """Pods at loopback addresses. Each has a report, or a status of its refusal. asked: Authorization headers. slow:
    seconds that a refusal takes."""

    monkeypatch: pytest.MonkeyPatch
    reports: dict[str, Any] = field(default_factory=dict)
    asked: list[str | None] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=lambda: dict(SPEC))
    pods: list[Any] = field(default_factory=list)
    replicas: int = 2
    now: float = START + 1000
    changed: list[PoolKey] = field(default_factory=list)
    generation: int = 1
    uid: str = "u1"
    slow: float = 0.0

    def observe(self, key: PoolKey) -> Observed | None:
        known = {"generation": self.generation, "uid": self.uid}
        return observed(self.spec, self.pods, self.replicas, **known) if key == KEY else None  # type: ignore[arg-type]

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization"))
        found = self.reports.get(request.host.split(":")[0])
        if isinstance(found, int):
            self.now += self.slow
            return web.Response(status=found)
        return web.Response(body=found if isinstance(found, bytes) else msgspec.json.encode(found))


@asynccontextmanager
async def running(world: World, tmp_path: Path) -> AsyncIterator[AutoscalingLoop]:
    (port,) = free_ports(1)
    for name in ("AGENT_PORT", "ROUTER_PORT"):
        world.monkeypatch.setattr(ports, name, port)
    app = web.Application()
    app.router.add_get("/v1/plumage/{what}", world.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    (tmp_path / "token").write_text("projected\n")
    client = FleetClient(tmp_path / "token", clock=lambda: world.now)
    try:
        yield AutoscalingLoop(client, lambda: [KEY], world.observe, world.changed.append, clock=lambda: world.now)
    finally:
        await client.close()
        await runner.cleanup()


def report(world: World, tokens: int, **more: Any) -> None:
    """Lets all pods report: each this many tokens since the start, and a router one request in flight."""
    world.pods = [pod(f"e{n}", address=f"127.0.0.{n + 2}") for n in range(world.replicas)]
    world.pods.append(pod("r0", "router", address="127.0.0.200"))
    for n in range(world.replicas):
        fields = {"hotness": float(n + 1), **more}
        world.reports[f"127.0.0.{n + 2}"] = agent(f"e{n}", world.now, tokens, **fields)
    world.reports["127.0.0.200"] = router(world.now, requests=tokens)
