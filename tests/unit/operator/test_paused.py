"""A paused pool is judged by its present size, and still follows cordons."""

from __future__ import annotations

import json
from typing import Any

from support.operator_world import World, pool_object

from plumage.cluster import CORDON, PAUSE
from plumage_operator.controller.actions import Apply
from plumage_operator.observed import ScalingDecision

BASE: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
AUTOSCALED = {**BASE, "autoscaling": {"minReplicas": 2, "maxReplicas": 9}}


def decision(replicas: int, before: int = 2) -> ScalingDecision:
    message = f"{before} → {replicas} replicas: TotalTokensPerSecond wants {replicas}."
    fields = {"autoscaling": {"wantedReplicas": replicas, "decision": message}}
    return ScalingDecision(replicas, "True", "ScaledUp", message, fields=fields)


def paused(spec: dict[str, Any]) -> World:
    """A pool that was paused while it served with two replicas."""
    world = World(pool_object(spec))
    world.converge()
    world.pool["metadata"]["annotations"] = {PAUSE: "true"}
    world.converge()
    world.events.clear()
    return world


def go_on(world: World) -> None:
    del world.pool["metadata"]["annotations"]
    world.converge()


def test_paused_pool_reports_the_scaling_decision_without_events() -> None:
    world = paused(AUTOSCALED)
    world.scaling = decision(7)
    world.converge()
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert world.reasons()["Progressing"] == ("False", "Settled")
    assert world.reasons()["Scaling"] == ("False", "Paused")
    assert "2 → 7" in world.condition("Scaling")["message"]
    assert world.pool["status"]["desiredReplicas"] == 2
    assert world.events == []
    go_on(world)
    assert world.reasons()["Scaling"] == ("True", "ScaledUp")
    assert world.pool["status"]["desiredReplicas"] == 7
    assert [one.message for one in world.events if one.reason == "ScaledUp"] == [decision(7).message]


def test_manual_size_of_a_paused_pool_emits_no_autoscaler_event() -> None:
    world = paused(AUTOSCALED)
    world.scaling = decision(7)
    world.objects["Deployment", "chat-engine"]["spec"]["replicas"] = 5
    world.converge()
    assert world.pool["status"]["desiredReplicas"] == 5
    assert {one.reason for one in world.events} <= {"Resizing", "Settled", "RollingOut"}


def test_autoscaled_size_before_the_pause_emits_an_event() -> None:
    world = World(pool_object(AUTOSCALED))
    world.converge()
    world.scaling = decision(7)
    world.do(action for action in world.plan() if isinstance(action, Apply))
    world.pool["metadata"]["annotations"] = {PAUSE: "true"}
    world.converge()
    assert [one.message for one in world.events if one.reason == "ScaledUp"] == [decision(7).message]


def test_requested_size_waits_for_the_end_of_the_pause() -> None:
    world = paused({**BASE, "replicas": 2})
    world.pool["spec"]["replicas"] = 5
    world.pool["metadata"]["generation"] = 2
    world.converge()
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert world.pool["status"]["desiredReplicas"] == 2
    go_on(world)
    assert world.pool["status"]["desiredReplicas"] == 5


def test_new_operator_keeps_the_size_of_a_resumed_pool() -> None:
    world = paused(AUTOSCALED)
    world.scaling = decision(7)
    world.converge()
    world.scaling = None
    go_on(world)
    assert world.pool["status"]["desiredReplicas"] == 2


def test_pool_made_paused_waits_for_its_replicas() -> None:
    world = World(pool_object({**BASE, "replicas": 2}, annotations={PAUSE: "true"}))
    world.converge()
    assert world.objects == {}
    assert world.reasons()["Ready"] == ("False", "Starting")
    assert world.pool["status"]["desiredReplicas"] == 2


def cordons(world: World) -> list[str]:
    names: list[str] = json.loads(world.objects["ConfigMap", "chat-router"]["data"]["cordoned.json"])["cordoned"]
    return names


def test_cordon_of_a_paused_pool_reaches_its_routers_and_nothing_else() -> None:
    world = paused({**BASE, "replicas": 2})
    settings = world.objects["ConfigMap", "chat-router"]["data"]["router.json"]
    world.pool["spec"] |= {"replicas": 3, "router": {"policy": "RoundRobin"}}
    world.pool["metadata"]["generation"] = 2
    world.pods["chat-engine-1"]["metadata"]["annotations"][CORDON] = "true"
    applied = [action for action in world.plan() if isinstance(action, Apply)]
    assert [action.child["metadata"]["name"] for action in applied] == ["chat-router"]
    world.do(world.plan())
    assert world.plan() == ()
    assert cordons(world) == ["chat-engine-1"]
    assert world.objects["ConfigMap", "chat-router"]["data"]["router.json"] == settings
    world.pods["chat-engine-1"]["metadata"]["annotations"][CORDON] = "false"
    world.do(world.plan())
    assert cordons(world) == []
    go_on(world)
    assert world.objects["ConfigMap", "chat-router"]["data"]["router.json"] != settings


def test_cordon_creates_no_object_and_takes_over_none() -> None:
    world = paused({**BASE, "replicas": 2})
    world.pods["chat-engine-1"]["metadata"]["annotations"][CORDON] = "true"
    world.objects["ConfigMap", "chat-router"]["metadata"]["ownerReferences"] = []
    assert not any(isinstance(action, Apply) for action in world.plan())
    del world.objects["ConfigMap", "chat-router"]
    assert not any(isinstance(action, Apply) for action in world.plan())
