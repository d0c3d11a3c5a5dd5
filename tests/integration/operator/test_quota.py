"""ResourceQuotas of a namespace on a real API server: every container can comply with them. If one does not, the pool's
condition follows the spec."""

from __future__ import annotations

import json
from typing import Any

import yaml
from support.operator_fleet import Fleet, condition, made, pool

AMOUNTS = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "640Mi"}}
# Its tokenizer comes from the hub, so each of its pods also has an init container.
WHOLE = {
    "model": {"uri": "hf://org/name", "fetchResources": AMOUNTS},
    "engine": {"runtime": "Simulator", "resources": AMOUNTS, "agentResources": AMOUNTS},
    "router": {"resources": AMOUNTS},
    "directory": {"managed": {"maxMemory": "64Mi", "resources": AMOUNTS}},
}
PARTS = {"engine": 1, "router": 2, "directory": 1}


def quota(fleet: Fleet, namespace: str, hard: dict[str, str]) -> None:
    """Makes a quota and waits until its controller has counted, since only then it is enforced."""
    manifest = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "hard"}, "spec": {"hard": hard}}
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(manifest))
    fleet.until(lambda: fleet.get(namespace, "resourcequota", "hard").get("status", {}).get("used"))


def pods(fleet: Fleet, namespace: str) -> dict[str, int]:
    """Admitted pods of each part."""
    found: dict[str, int] = {}
    for one in fleet.get(namespace, "pods")["items"]:
        part = one["metadata"]["labels"]["app.kubernetes.io/component"]
        found[part] = found.get(part, 0) + 1
    return found


def test_pool_with_resources_meets_full_quota(fleet: Fleet, namespace: str) -> None:
    asked = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
    quota(fleet, namespace, dict.fromkeys(asked, "20Gi"))
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps({**yaml.safe_load(pool()), "spec": WHOLE}))
    fleet.until(lambda: pods(fleet, namespace) == PARTS)
    # engine and agent of one replica, two routers, one directory: five containers
    used = fleet.until(lambda: counted(fleet, namespace, "limits.cpu", "2500m"))
    assert (used["limits.memory"], used["requests.cpu"]) == ("3200Mi", "100m")


def counted(fleet: Fleet, namespace: str, name: str, amount: str) -> dict[str, Any]:
    used: dict[str, Any] = fleet.get(namespace, "resourcequota", "hard")["status"]["used"]
    return used if used[name] == amount else {}


def test_pool_without_resources_meets_memory_quota(fleet: Fleet, namespace: str) -> None:
    quota(fleet, namespace, {"limits.memory": "20Gi", "requests.memory": "20Gi", "requests.cpu": "20"})
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool())
    fleet.until(lambda: pods(fleet, namespace) == PARTS)


def test_unmet_quota_names_fields_until_spec_is_corrected(fleet: Fleet, namespace: str) -> None:
    quota(fleet, namespace, {"limits.cpu": "20"})
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool())
    made(fleet, namespace)
    fleet.until(lambda: condition(fleet, namespace, "EngineReady")["reason"] == "QuotaExceeded")
    reported = condition(fleet, namespace, "EngineReady")["message"]
    assert "limits.cpu for: agent,engine" in reported
    assert "Set spec.engine.agentResources and spec.engine.resources." in reported
    change = json.dumps({"spec": {"engine": {"resources": AMOUNTS, "agentResources": AMOUNTS}}})
    fleet.kubectl("-n", namespace, "patch", "ppool", "chat", "--type=merge", "-p", change)
    fleet.until(lambda: pods(fleet, namespace).get("engine") == 1)
    fleet.until(lambda: condition(fleet, namespace, "EngineReady")["reason"] == "Starting")
    (old,) = (one for one in replica_sets(fleet, namespace) if one["status"].get("conditions"))
    assert old["spec"]["replicas"] == 1, (
        "the old ReplicaSet still exceeds the quota, and the condition does not mention it"
    )
    assert "limits.cpu" not in condition(fleet, namespace, "EngineReady")["message"]


def replica_sets(fleet: Fleet, namespace: str) -> list[dict[str, Any]]:
    engines = "app.kubernetes.io/component=engine"
    return list(fleet.get(namespace, "replicasets", "-l", engines)["items"])
