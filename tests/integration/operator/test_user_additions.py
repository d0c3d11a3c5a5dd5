"""Additions of users to a pool's objects, on a real API server: the operator removes those that change who may reach
whom. The server writes its own defaults, and these must cause no writes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from support.audit import Audit
from support.operator_fleet import Fleet, children, condition, events, made, pool

BINDING, SERVICE, POLICY = ("RoleBinding", "chat-router"), ("Service", "chat-router"), ("NetworkPolicy", "chat-engine")
ENGINE = ("Deployment", "chat-engine")
ANYBODY = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
ADDED: list[tuple[tuple[str, str], str, Any]] = [
    (SERVICE, "/spec/selector/theirs", "1"),
    (BINDING, "/subjects/-", ANYBODY),
    (POLICY, "/spec/ingress/0/ports/-", {"port": 22}),
    (POLICY, "/spec/ingress/0/from/0/namespaceSelector", {}),
    (POLICY, "/spec/podSelector/matchLabels/theirs", "1"),
    (("PodDisruptionBudget", "chat-engine"), "/spec/selector/matchLabels/theirs", "1"),
]
HALTED = (ENGINE, "/spec/paused", True)
ON_ITS_NODE = (ENGINE, "/spec/template/spec/hostNetwork", True)


def add(fleet: Fleet, namespace: str, key: tuple[str, str], path: str, value: Any) -> None:
    """A user's addition, in one edit."""
    edit = json.dumps([{"op": "add", "path": path, "value": value}])
    done = fleet.kubectl("-n", namespace, "patch", *key, "--type=json", "-p", edit)
    assert "no change" not in done


def shape(thing: dict[str, Any]) -> dict[str, Any]:
    return {part: thing[part] for part in thing if part not in ("metadata", "status")}


def repaired(fleet: Fleet, namespace: str) -> list[str]:
    """The objects of the pool that were repaired, by kind and name."""
    said = [said.split(" was changed")[0] for reason, said in events(fleet, namespace) if reason == "ChildRepaired"]
    return sorted(said)


def looked_at(fleet: Fleet, namespace: str, policy: str | None) -> None:
    """The operator has reconciled the whole pool: it writes the status last. A router's policy is in one ConfigMap and
    in no other object."""
    change = json.dumps({"spec": {"router": {"policy": policy}}})
    fleet.kubectl("-n", namespace, "patch", "ppool", "chat", "--type=merge", "-p", change)
    generation = fleet.get(namespace, "ppool", "chat")["metadata"]["generation"]
    fleet.until(lambda: condition(fleet, namespace, "Accepted").get("observedGeneration") == generation)


@pytest.fixture
def before(fleet: Fleet, namespace: str) -> dict[tuple[str, str], dict[str, Any]]:
    """A pool's objects as they were made."""
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 1"))
    return made(fleet, namespace)


def test_additions_to_network_access_are_removed_and_reported(
    fleet: Fleet, namespace: str, audit: Audit, before: dict[tuple[str, str], dict[str, Any]]
) -> None:
    for key, path, value in ADDED:
        add(fleet, namespace, key, path, value)
        fleet.until(lambda key=key: shape(children(fleet, namespace)[key]) == shape(before[key]), f"{key}: {path}")
    edited = sorted(f"{kind} {name}" for (kind, name), _, _ in ADDED)
    fleet.until(lambda: repaired(fleet, namespace) == edited)

    so_far = Counter(audit.written(namespace))
    for policy in ("RoundRobin", None):
        looked_at(fleet, namespace, policy)
    assert set(Counter(audit.written(namespace)) - so_far) == {"configmaps/chat-router", "inferencepools/chat"}
    assert repaired(fleet, namespace) == edited


def test_paused_rollout_and_host_network_are_reverted(
    fleet: Fleet, namespace: str, before: dict[tuple[str, str], dict[str, Any]]
) -> None:
    for what in (HALTED, ON_ITS_NODE):
        add(fleet, namespace, *what)
        fleet.until(lambda: shape(children(fleet, namespace)[ENGINE]) == shape(before[ENGINE]))
        path = what[1].strip("/").replace("/", ".")
        fleet.until(lambda path=path: any(reason == "ChildRepaired" and f"({path})" in said
                                          for reason, said in events(fleet, namespace)))  # fmt: skip
    assert "paused" not in before[ENGINE]["spec"], "what is off is not stored: no template changes by it"
    assert "hostNetwork" not in before[ENGINE]["spec"]["template"]["spec"]
