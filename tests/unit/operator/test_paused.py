"""A paused pool is judged by the size that it has, and still takes people's word on a replica."""

from __future__ import annotations

import json
from typing import Any

from support.operator_world import World, pool_object

from plumage.cluster import CORDON, PAUSE
from plumage_operator.controller.actions import Apply
from plumage_operator.observed import ScalingDecision

BASE: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
AUTOSCALED = {**BASE, "autoscaling": {"minReplicas": 2, "maxReplicas": 9}}


def word(replicas: int, before: int = 2) -> ScalingDecision:
    told = f"{before} → {replicas} replicas: TotalTokensPerSecond wants {replicas}."
    fields = {"autoscaling": {"wantedReplicas": replicas, "decision": told}}
    return ScalingDecision(replicas, "True", "ScaledUp", told, fields=fields)


def paused(spec: dict[str, Any]) -> World:
    """A pool that serves with two replicas, and was paused then."""
    world = World(pool_object(spec))
    world.converge()
    world.pool["metadata"]["annotations"] = {PAUSE: "true"}
    world.converge()
    world.told.clear()
    return world


def go_on(world: World) -> None:
    del world.pool["metadata"]["annotations"]
    world.converge()


def test_paused_pool_reports_the_autoscalers_decision_without_events() -> None:
    world = paused(AUTOSCALED)
    world.scaling = word(7)
    world.converge()
    assert world.reasons()["Ready"] == ("True", "Serving")
    assert world.reasons()["Progressing"] == ("False", "Settled")
    assert world.reasons()["Scaling"] == ("False", "Paused")
    assert "2 → 7" in world.condition("Scaling")["message"]
    assert world.pool["status"]["desiredReplicas"] == 2
    assert world.told == []
    go_on(world)
    assert world.reasons()["Scaling"] == ("True", "ScaledUp")
    assert world.pool["status"]["desiredReplicas"] == 7
    assert [one.message for one in world.told if one.reason == "ScaledUp"] == [word(7).message]


def test_manual_size_of_a_paused_pool_emits_no_autoscaler_event() -> None:
    world = paused(AUTOSCALED)
    world.scaling = word(7)
    world.objects["Deployment", "chat-engine"]["spec"]["replicas"] = 5
    world.converge()
    assert world.pool["status"]["desiredReplicas"] == 5
    assert {one.reason for one in world.told} <= {"Resizing", "Settled", "RollingOut"}


def test_autoscaled_size_before_the_pause_emits_an_event() -> None:
    world = World(pool_object(AUTOSCALED))
    world.converge()
    world.scaling = word(7)
    world.do(action for action in world.plan() if isinstance(action, Apply))
    world.pool["metadata"]["annotations"] = {PAUSE: "true"}
    world.converge()
    assert [one.message for one in world.told if one.reason == "ScaledUp"] == [word(7).message]


def test_a_size_that_people_ask_for_waits_too() -> None:
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
    world.scaling = word(7)
    world.converge()
    world.scaling = None
    go_on(world)
    assert world.pool["status"]["desiredReplicas"] == 2


def test_one_that_was_paused_before_it_was_made_waits_for_its_replicas() -> None:
    world = World(pool_object({**BASE, "replicas": 2}, annotations={PAUSE: "true"}))
    world.converge()
    assert world.objects == {}
    assert world.reasons()["Ready"] == ("False", "Starting")
    assert world.pool["status"]["desiredReplicas"] == 2


def cordons(world: World) -> list[str]:
    told: list[str] = json.loads(world.objects["ConfigMap", "chat-router"]["data"]["cordoned.json"])["cordoned"]
    return told


def test_a_cordon_reaches_its_routers_and_nothing_else_does() -> None:
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
