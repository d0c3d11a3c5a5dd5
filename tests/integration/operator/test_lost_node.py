"""A node stops reporting: the real node lifecycle controller marks its pods, and the pool reports the lost node.

No kubelet runs here. The test writes the status of nodes and pods as kubelets do, and stops doing so for one node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.operator_fleet import Fleet, condition, events, pool

from plumage.cluster import COMPONENT_LABEL

pytestmark = pytest.mark.timeout(600)

ALIVE, LOST = "lost-node-alive", "lost-node-lost"
SPEC = """\
    tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 20}]
  replicas: 1"""


@pytest.fixture
def nodes(fleet: Fleet) -> Iterator[None]:
    for name in (ALIVE, LOST):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        fleet.kubectl("create", "-f", "-", stdin=json.dumps(node))
        report(fleet, name)
    yield
    fleet.kubectl("delete", "node", ALIVE, LOST, "--ignore-not-found")


def report(fleet: Fleet, node: str) -> None:
    """What a kubelet writes every few seconds."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
    patch_status(fleet, "node", node, {"conditions": [ready]})


def patch_status(fleet: Fleet, kind: str, name: str, status: dict[str, Any], *where: str) -> None:
    change = json.dumps({"status": status})
    fleet.kubectl(*where, "patch", kind, name, "--subresource=status", "--type=strategic", "-p", change)


def run_on(fleet: Fleet, namespace: str, pod: dict[str, Any], node: str) -> None:
    """What scheduler and kubelet do with a pod until it is ready."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": uid}, "target": target}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    fleet.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))

    def status(containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        state = {"running": {"startedAt": "2027-01-01T00:00:00Z"}}
        more = {"ready": True, "started": True, "restartCount": 0, "imageID": "", "state": state}
        return [{"name": one["name"], "image": one["image"], **more} for one in containers]

    spec = pod["spec"]
    conditions = [{"type": one, "status": "True"} for one in ("Initialized", "ContainersReady", "Ready")]
    ready = {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": status(spec["containers"]),
        "initContainerStatuses": status(spec.get("initContainers", [])),
    }
    patch_status(fleet, "pod", name, ready, "-n", namespace)


def pods(fleet: Fleet, namespace: str, count: int) -> list[dict[str, Any]]:
    def enough() -> list[dict[str, Any]]:
        found = fleet.get(namespace, "pods").get("items", [])
        return found if len(found) >= count else []

    return list(fleet.until(enough))


def is_engine(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"][COMPONENT_LABEL] == "engine")


def test_lost_node_is_reported_with_a_warning(fleet: Fleet, namespace: str, nodes: None) -> None:
    fleet.kubectl(
        "-n",
        namespace,
        "apply",
        "-f",
        "-",
        stdin=pool(SPEC).replace("{runtime: Simulator}", "\n    runtime: Simulator"),
    )
    for pod in pods(fleet, namespace, 4):  # an engine, two routers, a directory
        run_on(fleet, namespace, pod, LOST if is_engine(pod) else ALIVE)

    def says(type_: str, status: str, reason: str) -> bool:
        report(fleet, ALIVE)
        found = condition(fleet, namespace, type_)
        return (found.get("status"), found.get("reason")) == (status, reason)

    def serves() -> bool:
        report(fleet, LOST)
        return says("Ready", "True", "Serving")

    fleet.until(serves)
    fleet.until(lambda: says("Ready", "False", "NodeLost"))  # the control plane waits for twelve seconds
    assert f"its node {LOST} stopped reporting" in condition(fleet, namespace, "EngineReady")["message"]
    listed = fleet.get(namespace, "events", "--field-selector=reason=NodeLost").get("items", [])
    assert [one["type"] for one in listed if one["involvedObject"]["kind"] == "InferencePool"] == ["Warning"]
    assert not [reason for reason, _ in events(fleet, namespace) if reason == "Warming"]

    def replaced() -> bool:
        still = says("Ready", "False", "NodeLost")
        return still and "A replacement is being started" in condition(fleet, namespace, "Ready")["message"]

    fleet.until(replaced)  # the pod on the lost node can not end
    replacement = next(pod for pod in pods(fleet, namespace, 5) if is_engine(pod) and "nodeName" not in pod["spec"])
    run_on(fleet, namespace, replacement, ALIVE)
    fleet.until(lambda: says("Ready", "True", "Serving"))
