"""A gateway on a real API server, with exactly the rights of the operator's role. No program runs there, so no router
becomes ready."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.operator_fleet import CHILDREN, pool

BEHIND = "  router: {gatewayRef: {name: front}}"
_ROUTERS = "inference.plumage.dev/gateway=front"
GATEWAY = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferenceGateway
metadata: {name: front}
spec:
  models:
    - {name: chat, pools: [{poolRef: {name: chat}}]}
    - {name: code, pools: [{poolRef: {name: code}}]}"""

SHARED = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferenceGateway
metadata: {{name: front}}
spec:
  models: [{{name: chat, pools: [{pools}]}}]"""


@pytest.fixture
def apply(fleet, namespace):
    def applied(manifest: str) -> None:
        fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=manifest)

    return applied


def reasons(fleet: Any, namespace: str, kind: str, name: str) -> dict[str, str]:
    found = fleet.get(namespace, kind, name).get("status", {}).get("conditions", [])
    return {one["type"]: one["reason"] for one in found}


def message(fleet: Any, namespace: str, kind: str, name: str, type_: str = "Ready") -> str:
    found = fleet.get(namespace, kind, name)["status"]["conditions"]
    return next(str(one["message"]) for one in found if one["type"] == type_)


def routers(fleet: Any, namespace: str) -> dict[str, dict[str, Any]]:
    """The gateway's children, by kind."""
    listed = fleet.get(namespace, CHILDREN, "-l", _ROUTERS).get("items", [])
    return {one["kind"]: one for one in listed}


def served(fleet: Any, namespace: str) -> dict[str, list[str]]:
    config = routers(fleet, namespace).get("ConfigMap", {"data": {"router.json": '{"pools": []}'}})
    return {one["pool"]: one["names"] for one in json.loads(config["data"]["router.json"])["pools"]}


def kept_ready(fleet: Any, namespace: str) -> int:
    """Writes what kubelets would write for the gateway's routers. Returns their number."""
    named = [one["metadata"]["name"] for one in fleet.get(namespace, "pods", "-l", _ROUTERS).get("items", [])]
    conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
    patch = json.dumps({"status": {"phase": "Running", "conditions": conditions}})
    for name in named:
        fleet.kubectl(
            "-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch, check=False
        )
    return len(named)


def test_gateway_serves_two_pools_then_one(fleet, namespace, apply) -> None:
    apply(pool(BEHIND))
    fleet.until(lambda: reasons(fleet, namespace, "ppool", "chat").get("RouterReady") == "GatewayMissing")
    apply(GATEWAY)
    fleet.until(lambda: reasons(fleet, namespace, "pgw", "front").get("Ready") == "PoolMissing")
    assert "create it" in message(fleet, namespace, "pgw", "front")
    fleet.until(lambda: served(fleet, namespace) == {"chat": ["chat"]})

    apply(pool(BEHIND, "code"))
    fleet.until(lambda: served(fleet, namespace) == {"chat": ["chat"], "code": ["code"]})
    found = routers(fleet, namespace)
    assert set(found) == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "RoleBinding", "Service", "ServiceAccount",
    }  # fmt: skip
    assert {child["metadata"]["name"] for child in found.values()} == {"front-gateway"}
    uid = fleet.get(namespace, "pgw", "front")["metadata"]["uid"]
    assert {child["metadata"]["ownerReferences"][0]["uid"] for child in found.values()} == {uid}
    fleet.until(lambda: reasons(fleet, namespace, "pgw", "front").get("Accepted") == "Valid")
    status = fleet.get(namespace, "pgw", "front")["status"]
    assert (status["pools"], status["addresses"]) == (["chat", "code"], [f"http://front-gateway.{namespace}.svc:8000"])

    fleet.until(lambda: kept_ready(fleet, namespace) == 2)
    fleet.until(lambda: reasons(fleet, namespace, "pgw", "front").get("Ready") == "Serving")
    for name in ("chat", "code"):
        fleet.until(lambda name=name: reasons(fleet, namespace, "ppool", name).get("RouterReady") == "Serving")
        served_pool = fleet.get(namespace, "ppool", name)
        assert served_pool["status"]["address"] == f"http://front-gateway.{namespace}.svc:8000"
    assert "router" not in {
        one["metadata"]["name"].rpartition("-")[2] for one in fleet.get(namespace, "deployments")["items"]
    }

    fleet.kubectl("-n", namespace, "delete", "ppool", "code", "--wait=false")
    fleet.until(lambda: served(fleet, namespace) == {"chat": ["chat"]})

    fleet.kubectl("-n", namespace, "delete", "service", "front-gateway")
    fleet.until(lambda: "Service" in routers(fleet, namespace))

    fleet.kubectl("-n", namespace, "delete", "pgw", "front", "--wait=false")
    fleet.until(lambda: reasons(fleet, namespace, "ppool", "chat").get("Ready") is not None
                and reasons(fleet, namespace, "ppool", "chat")["RouterReady"] == "GatewayMissing")  # fmt: skip
    assert "address" not in fleet.get(namespace, "ppool", "chat")["status"]
    assert "should not happen" not in fleet.log()


def test_older_of_two_unnamed_pools_serves_their_name(fleet, namespace, apply) -> None:
    apply(pool(BEHIND, "third"))
    apply(pool(BEHIND, "first"))
    time.sleep(1.1)  # creationTimestamp has whole seconds; pools of the same second are ordered by name
    apply(pool(BEHIND, "again"))
    apply(SHARED.format(pools="{poolRef: {name: third}}"))
    fleet.until(lambda: reasons(fleet, namespace, "pgw", "front").get("Accepted") == "ModelConflict")
    conflict = message(fleet, namespace, "pgw", "front")
    assert "pools first and again both have model tiny-chat, which leads to first" in conflict
    assert "list both pools under one of the gateway's models" in conflict
    fleet.until(lambda: served(fleet, namespace) == {"first": ["tiny-chat"], "third": ["chat"]})
    fleet.until(lambda: reasons(fleet, namespace, "ppool", "first").get("RouterReady") == "Starting")
    fleet.until(lambda: reasons(fleet, namespace, "ppool", "again").get("RouterReady") == "NotServed")
    fleet.until(lambda: "both have model tiny-chat" in message(fleet, namespace, "ppool", "again", "RouterReady"))


def test_two_pools_share_a_model_until_one_is_deleted(fleet, namespace, apply) -> None:
    apply(pool(BEHIND, "first"))
    apply(pool(BEHIND, "again"))
    apply(SHARED.format(pools="{poolRef: {name: first}, weight: 9}, {poolRef: {name: again}}"))
    fleet.until(lambda: served(fleet, namespace) == {"first": ["chat"], "again": ["chat"]})
    config = json.loads(routers(fleet, namespace)["ConfigMap"]["data"]["router.json"])
    shares = [{"pool": "first", "weight": 9}, {"pool": "again", "weight": 1}]
    assert [one["pools"] for one in config["sharedModels"]] == [shares]
    assert reasons(fleet, namespace, "pgw", "front")["Accepted"] == "Valid"

    fleet.kubectl("-n", namespace, "delete", "ppool", "first", "--wait=false")
    fleet.until(lambda: served(fleet, namespace) == {"again": ["chat"]})
    fleet.until(lambda: reasons(fleet, namespace, "pgw", "front").get("Accepted") == "PoolMissing")
