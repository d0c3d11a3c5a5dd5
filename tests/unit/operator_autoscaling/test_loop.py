"""The autoscaling loop against HTTP servers that report as routers and agents do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fleets import router
from support.reporting_pool import KEY, SPEC, World, report, running

from plumage_operator.autoscaling import AutoscalingLoop


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def poll(world: World, loop: AutoscalingLoop, tokens: int, **more: Any) -> Any:
    world.now += 15
    report(world, tokens, **more)
    await loop.round()
    return loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]


async def test_round_polls_decides_and_notifies(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        assert await poll(world, loop, 0) is None, "a rate needs two polls: until then the status holds"
        second = await poll(world, loop, 4500)  # 300 a second on each of two
        assert (second.desired, second.status, second.reason) == (6, "True", "ScaledUp")
        assert second.message.startswith("2 → 6 replicas: TotalTokensPerSecond 300 a replica, target 100, wants 6")
        assert second.fields["autoscaling"]["wantedReplicas"] == 6
        assert world.changed == [KEY]
        assert set(world.asked) == {"Bearer projected"}
        # The performer did it: the rate policy counts it from then on, and the status has the time.
        world.replicas = 6
        third = await poll(world, loop, 4500 + 9000)
        assert (third.desired, third.reason) == (6, "AtTarget")
        assert third.fields["autoscaling"]["lastScaleTime"] == "2023-11-14T22:30:45Z"


async def test_coldest_replica_gets_the_lowest_cost_at_scale_down(world: World, tmp_path: Path) -> None:
    world.replicas = 4
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        decision = await poll(world, loop, 600)  # 40 a second: two would do, one may be removed per minute
        assert (decision.desired, dict(decision.deletion_costs)) == (3, {"e0": -1})
        annotated = world.observe(KEY)
        assert annotated is not None
        annotated.pods[0]["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] = "-1"
        assert loop.decision(KEY, annotated).deletion_costs == {}  # type: ignore[union-attr]


async def test_pool_without_autoscaling_has_a_hit_ratio_and_a_coldest_replica(world: World, tmp_path: Path) -> None:
    world.spec, world.replicas = {"replicas": 2}, 3
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        world.now += 60
        world.reports["127.0.0.200"] = router(world.now, requests=9, prompts=1000, cached=750)
        await loop.round()
        decision = loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert decision is not None
        assert (decision.desired, decision.reason, dict(decision.deletion_costs)) == (2, "Manual", {"e0": -1})
        assert decision.fields == {"hitRatioPercent": 75}


async def test_decision_is_dropped_with_its_spec(world: World, tmp_path: Path) -> None:
    """At once, not at the next poll: a user who removes autoscaling reads the conditions immediately."""
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        assert (await poll(world, loop, 4500)).reason != "Manual"
        world.spec, world.generation = {"replicas": 2}, 2
        decision = loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert decision is not None
        assert (decision.desired, decision.reason) == (2, "Manual")
        assert "autoscaling" not in decision.fields


async def test_decision_of_a_deleted_namesake_is_dropped(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        assert (await poll(world, loop, 4500)).desired == 6
        world.uid, world.replicas = "u2", 1
        assert loop.decision(KEY, world.observe(KEY)) is None  # type: ignore[arg-type]
        assert await poll(world, loop, 0) is None
        assert (await poll(world, loop, 1500)).fields["autoscaling"].get("lastScaleTime") is None


async def test_metric_missing_twice_is_reported(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        assert await poll(world, loop, 0) is None
        world.now += 15
        world.reports = {f"127.0.0.{n}": 403 for n in (2, 3, 200)}
        await loop.round()
        decision = loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert decision is not None
        assert (decision.desired, decision.status, decision.reason) == (2, "False", "MetricMissing")


async def test_silent_pods_hold_the_pool_and_are_polled_less_often(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        await poll(world, loop, 4500)
        for status in (403, b"no json", b'{"replica": "e0", "version": 99}', b" " * (5 << 20)):
            world.now += 15
            world.reports = {f"127.0.0.{n}": status for n in (2, 3, 200)}
            await loop.round()
        world.now += 60
        await loop.round()
        decision = loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert decision is not None
        assert (decision.desired, decision.reason) == (2, "MetricMissing")
        asked = len(world.asked)
        world.now += 15
        await loop.round()
        assert len(world.asked) == asked


async def test_deleted_pool_is_forgotten(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        world.monkeypatch.setattr(loop, "_pools", list)
        await loop.round()
        assert not loop.scalers


async def test_sleeping_pool_is_polled_often_and_woken(world: World, tmp_path: Path) -> None:
    world.spec, world.replicas = {"autoscaling": {**SPEC["autoscaling"], "minReplicas": 0}}, 0
    async with running(world, tmp_path) as loop:
        assert (await poll(world, loop, 0)).reason == "Asleep"
        world.now += 2
        world.reports["127.0.0.200"] = router(world.now, requests=20, wanting=20, waiting=20)
        await loop.round()
        decision = loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]
        assert decision is not None
        assert (decision.desired, decision.reason) == (1, "Woken")


async def test_invalid_manifest_does_not_disturb_others(world: World, tmp_path: Path) -> None:
    async with running(world, tmp_path) as loop:
        await poll(world, loop, 0)
        world.spec, world.generation = {"replicas": -1}, 2
        assert await poll(world, loop, 0) is None
