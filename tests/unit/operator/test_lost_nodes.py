"""The loss of a node: its pods as the API server has them, and the conditions of the pool."""

from __future__ import annotations

from typing import Any

from support.operator_world import World, pod_object, pool_object

from plumage.cluster import COMPONENT_LABEL
from plumage.lost_pods import is_lost
from plumage_operator.controller.actions import EmitEvent
from plumage_operator.status.conditions import Reason
from plumage_operator.status.diagnosis import diagnose

CONTAINERS = [{"name": "engine", "image": "engine:1", "ready": True, "state": {"running": {}}}]


def on_lost_node(component: str = "engine", **spec: Any) -> dict[str, Any]:
    """As the node lifecycle controller leaves it: Ready is False, everything else as the kubelet wrote it last."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "ContainersReady", "status": "True"},
        {"type": "Ready", "status": "False"},
    ]
    pod = pod_object(component, conditions=conditions, containerStatuses=CONTAINERS)
    return {**pod, "spec": {"nodeName": "node-2", **spec}}


def lose_node_of(world: World, name: str) -> None:
    pod = world.pods[name]
    lost = on_lost_node(pod["metadata"]["labels"][COMPONENT_LABEL])
    pod["status"], pod["spec"] = lost["status"], lost["spec"]
    deployment = world.objects["Deployment", name.rpartition("-")[0]]
    deployment["status"]["readyReplicas"] -= 1


def say(world: World) -> None:
    for _ in range(3):
        world.do(world.plan())


def test_lost_node_is_named() -> None:
    cause = diagnose([on_lost_node()], None, [])
    assert cause is not None
    assert cause.reason is Reason.NODE_LOST
    assert "chat-engine-0 is lost: its node node-2 stopped reporting" in cause.message
    assert "kubectl delete pod chat-engine-0 --force" in cause.message


def test_pod_that_a_kubelet_reports_is_not_lost() -> None:
    """It writes both conditions: a container that is not ready makes both False."""
    pod = on_lost_node()
    pod["status"]["conditions"][1]["status"] = "False"
    assert not is_lost(pod)


def test_pod_that_waits_for_a_readiness_gate_is_not_lost() -> None:
    gates = [{"conditionType": "example.com/attached"}]
    pod = on_lost_node(readinessGates=gates)
    assert not is_lost(pod)
    pod["status"]["conditions"].append({"type": "example.com/attached", "status": "True"})
    assert is_lost(pod)


def test_pod_that_stays_terminating_on_a_lost_node_is_named() -> None:
    pod = on_lost_node()
    pod["metadata"]["deletionTimestamp"] = "2027-01-01T00:05:00Z"
    cause = diagnose([pod], None, [])
    assert cause is not None
    assert cause.reason is Reason.NODE_LOST
    assert "replacement" in cause.message


def test_draining_pod_is_no_cause() -> None:
    pod = pod_object(containerStatuses=CONTAINERS)
    pod["metadata"]["deletionTimestamp"] = "2027-01-01T00:05:00Z"
    assert diagnose([pod], None, []) is None


def test_permanent_cause_keeps_its_reason_and_names_the_lost_node() -> None:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    replacement = pod_object(
        name="chat-engine-1", conditions=[{"type": "PodScheduled", "status": "False", "message": message}]
    )
    cause = diagnose([on_lost_node(), replacement], None, [])
    assert cause is not None
    assert cause.reason is Reason.NO_GPU
    assert "node-2 stopped reporting" in cause.message


def test_container_that_a_restarted_kubelet_cannot_find_is_no_crash() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "could not be located"}}
    statuses = [{"name": "engine", "ready": False, "state": ended, "restartCount": 0}]
    cause = diagnose([pod_object(containerStatuses=statuses)], None, [])
    assert cause is not None
    assert (cause.reason, cause.transient) == (Reason.NODE_LOST, True)


def test_pool_that_loses_a_node_warns_and_is_degraded() -> None:
    world = World()
    world.converge()
    lose_node_of(world, "chat-engine-0")
    world.events.clear()
    say(world)
    assert world.reasons()["Ready"] == ("True", "Degraded")
    assert world.reasons()["EngineReady"] == ("True", "Degraded")
    (ready,) = [event for event in world.events if event.reason == "Degraded"]
    assert ready.type == "Warning"
    assert "its node node-2 stopped reporting" in ready.message
    assert not [event for event in world.events if "warm" in event.message]


def test_pool_that_loses_its_only_replica_is_not_ready_for_a_lost_node() -> None:
    spec = {**pool_object()["spec"], "replicas": 1}
    world = World(pool_object(spec))
    world.converge()
    lose_node_of(world, "chat-engine-0")
    world.events.clear()
    say(world)
    assert world.reasons()["Ready"] == ("False", "NodeLost")
    assert EmitEvent("Warning", "NodeLost", world.condition("Ready")["message"]) in world.events


def test_pool_that_loses_a_router_with_its_node_warns_and_serves() -> None:
    world = World()
    world.converge()
    lose_node_of(world, "chat-router-0")
    world.events.clear()
    say(world)
    assert world.reasons()["Ready"] == ("True", "Degraded")
    assert world.reasons()["RouterReady"] == ("True", "Degraded")
    assert [event.type for event in world.events if event.reason == "Degraded"] == ["Warning"]
