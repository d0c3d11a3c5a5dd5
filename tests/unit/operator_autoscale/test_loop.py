"""The loop against HTTP servers that report as routers and agents do."""

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

from plumage_operator.autoscale import Autoscaling, FleetClient
from plumage_operator.autoscale import pods as ports
from plumage_operator.observed import Observed
from plumage_operator.store import PoolKey

KEY: PoolKey = ("models", "chat")
SPEC: dict[str, Any] = {
    "autoscaling": {
        "minReplicas": 1,
        "maxReplicas": 10,
        "metrics": [{"type": "TokensPerSecond", "target": 100}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
}


@dataclass
class World:
    """Pods at loopback addresses, each with a report. asked: Authorization headers."""

    monkeypatch: pytest.MonkeyPatch
    reports: dict[str, Any] = field(default_factory=dict)
    asked: list[str | None] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=lambda: dict(SPEC))
    pods: list[Any] = field(default_factory=list)
    replicas: int = 2
    now: float = START + 1000
    changed: list[PoolKey] = field(default_factory=list)
    generation: int = 1

    def observe(self, key: PoolKey) -> Observed | None:
        return observed(self.spec, self.pods, self.replicas, generation=self.generation) if key == KEY else None

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization"))
        found = self.reports.get(request.host.split(":")[0])
        if isinstance(found, int):
            return web.Response(status=found)
        return web.Response(body=found if isinstance(found, bytes) else msgspec.json.encode(found))


@asynccontextmanager
async def running(world: World, tmp_path: Path) -> AsyncIterator[Autoscaling]:
    (port,) = free_ports(1)
    for name in ("AGENT_PORT", "ROUTER_PORT"):
        world.monkeypatch.setattr(ports, name, port)
    app = web.Application()
    app.router.add_get("/v1/plumage/{what}", world.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    (tmp_path / "token").write_text("projected\n")
    client = FleetClient(tmp_path / "token")
    try:
        yield Autoscaling(client, lambda: [KEY], world.observe, world.changed.append, clock=lambda: world.now)
    finally:
        await client.close()
        await runner.cleanup()


def report(world: World, tokens: int, **more: Any) -> None:
    """All pods tell: so many tokens each since the beginning, and a router that has a request under way."""
    world.pods = [pod(f"e{n}", address=f"127.0.0.{n + 2}") for n in range(world.replicas)]
    world.pods.append(pod("r0", "router", address="127.0.0.200"))
    for n in range(world.replicas):
        told = {"hotness": float(n + 1), **more}
        world.reports[f"127.0.0.{n + 2}"] = agent(f"e{n}", world.now, tokens, **told)
    world.reports["127.0.0.200"] = router(world.now, requests=tokens)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def look(world: World, loop: Autoscaling, tokens: int, **more: Any) -> Any:
    world.now += 15
    report(world, tokens, **more)
    await loop.round()
    return loop.word(KEY, world.observe(KEY))  # type: ignore[arg-type]


async def test_it_asks_decides_and_tells_whoever_plans(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        first = await look(world, loop, 0)
        assert (first.desired, first.status, first.reason) == (2, "False", "MetricMissing")
        second = await look(world, loop, 4500)  # 300 a second on each of two
        assert (second.desired, second.status, second.reason) == (6, "True", "ScaledUp")
        assert second.message.startswith("2 → 6 replicas: TokensPerSecond 300 a replica, target 100, wants 6")
        assert second.fields["autoscaling"]["wantedReplicas"] == 6
        assert world.changed == [KEY, KEY]
        assert set(world.asked) == {"Bearer projected"}
        # Done by whoever plans: the rate policy counts it from then on, and the status tells when.
        world.replicas = 6
        third = await look(world, loop, 4500 + 9000)
        assert (third.desired, third.reason) == (6, "AtTarget")
        assert third.fields["autoscaling"]["lastScaleTime"] == "2023-11-14T22:30:45Z"


async def test_at_scale_down_the_coldest_gets_the_lowest_cost(world: World, tmp_path: Path) -> None:
    world.replicas = 4
    async with running(world, tmp_path) as loop:
        await look(world, loop, 0)
        word = await look(world, loop, 600)  # 40 a second: two would do, one may go a minute
        assert (word.desired, dict(word.deletion_costs)) == (3, {"e0": -1})
        annotated = world.observe(KEY)
        assert annotated is not None
        annotated.pods[0]["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] = "-1"
        assert loop.word(KEY, annotated).deletion_costs == {}  # type: ignore[union-attr]


async def test_a_pool_without_autoscaling_has_a_hit_ratio_and_a_coldest_replica(world: World, tmp_path: Path) -> None:
    world.spec, world.replicas = {"replicas": 2}, 3
    async with running(world, tmp_path) as loop:
        await look(world, loop, 0)
        world.now += 60
        world.reports["127.0.0.200"] = router(world.now, requests=9, prompts=1000, cached=750)
        await loop.round()
        word = loop.word(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert word is not None
        assert (word.desired, word.reason, dict(word.deletion_costs)) == (2, "Manual", {"e0": -1})
        assert word.fields == {"hitRatioPercent": 75}


async def test_what_was_decided_is_forgotten_with_the_spec_that_asked_for_it(world: World, tmp_path: Path) -> None:
    """At once, not at the next look: somebody who takes autoscaling out reads the conditions now."""
    async with running(world, tmp_path) as loop:
        await look(world, loop, 0)
        assert (await look(world, loop, 4500)).reason != "Manual"
        world.spec, world.generation = {"replicas": 2}, 2
        word = loop.word(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert word is not None
        assert (word.desired, word.reason) == (2, "Manual")
        assert "autoscaling" not in word.fields


async def test_pods_that_do_not_answer_hold_the_pool_and_are_asked_less_often(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await look(world, loop, 0)
        await look(world, loop, 4500)
        for status in (403, b"no json", b'{"replica": "e0", "version": 99}', b" " * (5 << 20)):
            world.now += 15
            world.reports = {f"127.0.0.{n}": status for n in (2, 3, 200)}
            await loop.round()
        world.now += 60
        await loop.round()
        word = loop.word(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert word is not None
        assert (word.desired, word.reason) == (2, "MetricMissing")
        asked = len(world.asked)
        world.now += 15
        await loop.round()
        assert len(world.asked) == asked


async def test_a_pool_that_is_gone_is_forgotten(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await look(world, loop, 0)
        world.monkeypatch.setattr(loop, "_pools", list)
        await loop.round()
        assert not loop.scalers


async def test_a_sleeping_pool_is_looked_at_often_and_woken(world: World, tmp_path: Path) -> None:
    world.spec, world.replicas = {"autoscaling": {**SPEC["autoscaling"], "minReplicas": 0}}, 0
    async with running(world, tmp_path) as loop:
        assert (await look(world, loop, 0)).reason == "Asleep"
        world.now += 2
        world.reports["127.0.0.200"] = router(world.now, requests=20, wanting=20, held=20)
        await loop.round()
        word = loop.word(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert word is not None
        assert (word.desired, word.reason) == (1, "Woken")


async def test_a_manifest_that_is_wrong_disturbs_nobody(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await look(world, loop, 0)
        world.spec, world.generation = {"replicas": -1}, 2
        assert await look(world, loop, 0) is None
