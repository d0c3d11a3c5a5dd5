"""Additions to a pool's objects: removed where they open network access, kept where others may add."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from support.operator_world import World, pool_object

from plumage.cluster import PAUSE
from plumage_operator.controller.actions import Apply, EmitEvent

ANYBODY = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
EXPOSED = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator"},
    "replicas": 2,
    "router": {"httpRoute": {"parentRefs": [{"name": "front"}]}, "endpointPicker": {"inferencePool": {}}},
    "monitoring": {"enabled": True},
}
Edit = Callable[[dict[str, Any]], Any]
POLICY, SERVICE = ("NetworkPolicy", "chat-engine"), ("Service", "chat-router")
BINDING, BUDGET, ENGINE = (
    ("RoleBinding", "chat-router"),
    ("PodDisruptionBudget", "chat-engine"),
    (
        "Deployment",
        "chat-engine",
    ),
)
ROUTE, MONITOR = ("HTTPRoute", "chat-router"), ("PodMonitor", "chat-engine")
PUBLISHED = ("InferencePool.inference.networking.k8s.io", "chat")


def settled() -> World:
    world = World(pool_object(EXPOSED))
    world.converge()
    world.events.clear()
    return world


def pod(thing: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = thing["spec"]["template"]["spec"]
    return found


def peer(thing: dict[str, Any]) -> dict[str, Any]:
    """The first that may reach the engines."""
    found: dict[str, Any] = thing["spec"]["ingress"][0]["from"][0]
    return found


TAKEN_OUT: dict[str, tuple[tuple[str, str], Edit, str]] = {
    "a rule": (POLICY, lambda one: one["spec"]["ingress"].append({}), "spec.ingress"),
    "a rule's port": (
        POLICY, lambda one: one["spec"]["ingress"][0]["ports"].append({"port": 22}), "spec.ingress[0].ports",
    ),
    "a range of ports": (
        POLICY, lambda one: one["spec"]["ingress"][0]["ports"][0].update(endPort=65535),
        "spec.ingress[0].ports[0].endPort",
    ),
    "all namespaces": (
        POLICY, lambda one: peer(one).update(namespaceSelector={}), "spec.ingress[0].from[0].namespaceSelector",
    ),
    "a peer's label": (
        POLICY, lambda one: peer(one)["podSelector"]["matchLabels"].update(a="b"),
        "spec.ingress[0].from[0].podSelector.matchLabels.a",
    ),
    "a peer": (POLICY, lambda one: one["spec"]["ingress"][0]["from"].append({}), "spec.ingress[0].from"),
    "a label of the pods that it holds": (
        POLICY, lambda one: one["spec"]["podSelector"]["matchLabels"].update(a="b"), "spec.podSelector.matchLabels.a",
    ),
    "an expression": (
        POLICY, lambda one: one["spec"]["podSelector"].update(matchExpressions=[{"key": "a", "operator": "Exists"}]),
        "spec.podSelector.matchExpressions",
    ),
    "a type of policy": (POLICY, lambda one: one["spec"]["policyTypes"].append("Egress"), "spec.policyTypes"),
    "a subject": (BINDING, lambda one: one["subjects"].append(ANYBODY), "subjects"),
    "a Service's label": (SERVICE, lambda one: one["spec"]["selector"].update(a="b"), "spec.selector.a"),
    "a budget's label": (
        BUDGET, lambda one: one["spec"]["selector"]["matchLabels"].update(a="b"), "spec.selector.matchLabels.a",
    ),
    "a backend": (
        ROUTE, lambda one: one["spec"]["rules"][0]["backendRefs"].append({"name": "theirs", "port": 80}),
        "spec.rules[0].backendRefs",
    ),
    "a parent": (ROUTE, lambda one: one["spec"]["parentRefs"].append({"name": "theirs"}), "spec.parentRefs"),
    "an endpoint": (
        MONITOR, lambda one: one["spec"]["podMetricsEndpoints"].append({"port": "theirs"}), "spec.podMetricsEndpoints",
    ),
    "a label of published engines": (
        PUBLISHED, lambda one: one["spec"]["selector"]["matchLabels"].update(a="b"), "spec.selector.matchLabels.a",
    ),
    "another picker": (
        PUBLISHED, lambda one: one["spec"]["endpointPickerRef"].update(name="theirs", group="theirs.example"),
        "spec.endpointPickerRef.group, spec.endpointPickerRef.name",
    ),
    "another port of engines": (
        PUBLISHED, lambda one: one["spec"]["targetPorts"].append({"number": 22}), "spec.targetPorts",
    ),
    "a halt": (ENGINE, lambda one: one["spec"].update(paused=True), "spec.paused"),
    "its node's network": (ENGINE, lambda one: pod(one).update(hostNetwork=True), "spec.template.spec.hostNetwork"),
    "its node's processes": (ENGINE, lambda one: pod(one).update(hostPID=True), "spec.template.spec.hostPID"),
}  # fmt: skip
LEFT: dict[str, tuple[tuple[str, str], Edit]] = {
    "a variable": (ENGINE, lambda one: pod(one)["containers"][0].setdefault("env", []).append({"name": "THEIRS"})),
    "a container": (ENGINE, lambda one: pod(one)["containers"].append({"name": "mesh", "image": "mesh:1"})),
    "a label": (ENGINE, lambda one: one["spec"]["template"]["metadata"]["labels"].update(theirs="1")),
    "a Service's port": (SERVICE, lambda one: one["spec"]["ports"].append({"name": "theirs", "port": 81})),
    "what definitions write into a route": (
        ROUTE, lambda one: one["spec"]["rules"][0]["backendRefs"][0].update(group="", kind="Service", weight=1),
    ),
    "what definitions write into a published pool": (PUBLISHED, lambda one: one["spec"].update(appProtocol="http")),
    "what is off and stored": (ENGINE, lambda one: [one["spec"].pop("paused"), pod(one).pop("hostNetwork")]),
}  # fmt: skip


@pytest.mark.parametrize(("key", "edit", "path"), TAKEN_OUT.values(), ids=TAKEN_OUT)
def test_added_fields_are_reported_and_removed(key: tuple[str, str], edit: Edit, path: str) -> None:
    world = settled()
    before = copy.deepcopy(world.objects[key])
    edit(world.objects[key])
    made, event = world.plan()
    assert isinstance(event, EmitEvent)
    assert (event.type, event.reason) == ("Warning", "ChildRepaired")
    assert event.message == f"{key[0]} {key[1]} was changed ({path}) and is restored"
    assert isinstance(made, Apply)
    world.converge()
    after = world.objects[key]
    assert {part: after[part] for part in after if part not in ("metadata", "status")} == {
        part: before[part] for part in before if part not in ("metadata", "status")
    }


@pytest.mark.parametrize(("key", "edit"), LEFT.values(), ids=LEFT)
def test_allowed_additions_are_left_alone(key: tuple[str, str], edit: Edit) -> None:
    world = settled()
    edit(world.objects[key])
    assert world.plan() == ()


def test_halted_rollout_in_a_paused_pool_is_left_and_reported() -> None:
    world = settled()
    world.pool["metadata"]["annotations"] = {PAUSE: "true"}
    deployment = world.objects[ENGINE]
    deployment["spec"]["paused"] = True
    deployment["status"]["updatedReplicas"] = 1  # during a rollout
    world.do(world.plan())
    assert deployment["spec"]["paused"]
    assert world.reasons()["Progressing"] == ("True", "RollingOut")
    assert "kubectl rollout resume deployment chat-engine" in world.condition("Progressing")["message"]
    deployment["spec"]["paused"] = False
    world.do(world.plan())
    assert world.condition("Progressing")["message"] == "1 of 2 replicas are up to date"
