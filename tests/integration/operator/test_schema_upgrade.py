"""Today's definitions replace those of an earlier version (before/) while pools exist: stored pools stay valid, no pod
is replaced, and new fields work for old pools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kube import served
from support.operator_fleet import Fleet, pool

pytestmark = pytest.mark.api_server  # a cluster of its own

BEFORE = Path(__file__).parents[2] / "contract" / "crds" / "before"
NAMESPACE = "live"
ITSELF = "  autoscaling: {minReplicas: 2, maxReplicas: 3, metrics: [{type: CacheHitRatio, targetPercent: 60}]}"
POOLS = {"plain": "", "sized": "  replicas: 2", "itself": ITSELF, "behind": "  router: {gatewayRef: {name: front}}"}
GATEWAY = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferenceGateway
metadata: {name: front}
spec: {models: [{name: tiny-chat, pools: [{poolRef: {name: behind}}]}]}
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Fleet]:
    """A cluster with the earlier definitions, and with pools and a gateway that an operator has made."""
    with served() as server:
        fleet = Fleet(server, tmp_path)
        server.kubectl("apply", "--server-side", "-f", str(BEFORE))
        server.established()
        fleet.install(define=False)
        fleet.kubectl("create", "namespace", NAMESPACE)
        manifests = "\n---\n".join([*(pool(spec, name) for name, spec in POOLS.items()), GATEWAY])
        fleet.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=manifests)
        fleet.start()
        fleet.until(lambda: all(conditions(fleet, name) for name in POOLS))
        yield fleet
        for name in list(fleet.operators):
            fleet.stop(name, kill=True)


def conditions(fleet: Fleet, name: str) -> Any:
    """The pool's conditions; None before the operator wrote them."""
    return fleet.get(NAMESPACE, "ppool", name).get("status", {}).get("conditions")


def templates(fleet: Fleet) -> dict[str, tuple[int, Any]]:
    """By Deployment: its generation and its pod template."""
    found = fleet.get(NAMESPACE, "deployments")["items"]
    return {one["metadata"]["name"]: (one["metadata"]["generation"], one["spec"]["template"]) for one in found}


def test_new_definitions_keep_live_pools_and_pods(live: Fleet) -> None:
    before, deployments = {name: live.get(NAMESPACE, "ppool", name) for name in POOLS}, templates(live)
    assert "replicas" not in before["plain"]["spec"]
    assert {"plain-engine", "plain-router", "front-gateway"} <= deployments.keys()

    live.define()
    for name in POOLS:
        live.kubectl("-n", NAMESPACE, "annotate", "ppool", name, "touched=after")  # written with the new schema
        after = live.get(NAMESPACE, "ppool", name)
        assert after["metadata"]["generation"] >= before[name]["metadata"]["generation"]
        assert after["spec"]["replicas"] == before[name]["spec"].get("replicas", 1)
        scale = f"/apis/inference.plumage.dev/v1alpha1/namespaces/{NAMESPACE}/inferencepools/{name}/scale"
        assert json.loads(live.kubectl("get", "--raw", scale))["spec"]["replicas"] == after["spec"]["replicas"]
    live.until(lambda: all(seen(live, name) for name in POOLS))
    assert templates(live) == deployments, "nothing rolls for a new schema"
    for name in POOLS:
        (accepted,) = (one for one in conditions(live, name) if one["type"] == "Accepted")
        assert accepted["status"] == "True", accepted

    change = {"spec": {"engine": {"agentResources": {"limits": {"memory": "2Gi"}}}}}  # a new field
    live.kubectl("-n", NAMESPACE, "patch", "ppool", "plain", "--type=merge", "-p", json.dumps(change))
    live.until(lambda: agent_limit(live) == "2Gi")
    live.kubectl("-n", NAMESPACE, "scale", "ppool/plain", "--replicas=3")
    live.until(lambda: live.get(NAMESPACE, "deployment", "plain-engine")["spec"]["replicas"] == 3)


def seen(fleet: Fleet, name: str) -> bool:
    """Whether the operator's status is of the present spec."""
    thing = fleet.get(NAMESPACE, "ppool", name)
    return bool(thing["status"]["observedGeneration"] == thing["metadata"]["generation"])


def agent_limit(fleet: Fleet) -> str:
    inside = fleet.get(NAMESPACE, "deployment", "plain-engine")["spec"]["template"]["spec"]
    (agent,) = (one for one in inside["initContainers"] if one["name"] == "agent")
    return str(agent["resources"]["limits"]["memory"])
