"""The chart's admission policy on a real API server: which writes it permits to the operator's account.

All other tests here run with the policy too, so everything that the operator does for pools is permitted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.operator_fleet import Fleet, made, pool

KEY = "app.kubernetes.io/managed-by"
LABEL = {KEY: "plumage"}
WRITE = "the Plumage operator may only write objects that carry the label"
CHANGE = "the Plumage operator may only change or delete objects that carried the label"
Operator = Callable[..., str]


def config_map(name: str, labels: dict[str, str] | None = None) -> str:
    metadata = {"name": name, "labels": labels or {}}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}})


def deployment(name: str) -> str:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})


@pytest.fixture
def operator(fleet: Fleet) -> Operator:
    """kubectl with the operator's own token: its output or the error. The policy takes effect a moment after its
    creation."""
    own: Operator = partial(fleet.kubectl, f"--kubeconfig={fleet.kubeconfig()}", check=False)
    create = ("-n", "kube-system", "create", "--dry-run=server", "-f", "-")
    fleet.until(lambda: WRITE in own(*create, stdin=config_map("no-label")))
    return own


def test_operator_cannot_create_without_its_label(fleet: Fleet, operator: Operator) -> None:
    for thing in (config_map("theirs"), config_map("theirs", {KEY: "Helm"}), deployment("theirs")):
        assert WRITE in operator("-n", "kube-system", "create", "-f", "-", stdin=thing)
    assert fleet.get("kube-system", "configmap", "theirs") == {}
    assert fleet.get("kube-system", "deployment", "theirs") == {}


def test_operator_cannot_change_objects_of_others(fleet: Fleet, operator: Operator) -> None:
    name = "extension-apiserver-authentication"  # Kubernetes' own object; without it every aggregated API fails
    before = fleet.get("kube-system", "configmap", name)
    assert before["data"]
    asked = ("-n", "kube-system")
    assert CHANGE in operator(*asked, "delete", "configmap", name)
    assert CHANGE in operator(*asked, "label", "configmap", name, f"{KEY}=plumage"), "it may not take it over"
    assert WRITE in operator(*asked, "patch", "configmap", name, "--type=merge", "-p", '{"data": {"a": "b"}}')
    stolen = json.dumps({"metadata": {"labels": LABEL, "ownerReferences": [owner()]}})
    assert CHANGE in operator(*asked, "patch", "configmap", name, "--type=merge", "-p", stolen)
    assert (
        fleet.get("kube-system", "configmap", name)["metadata"]["resourceVersion"]
        == (before["metadata"]["resourceVersion"])
    )


def owner() -> dict[str, Any]:
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "name": "chat"}
    return {**kind, "uid": "00000000-0000-0000-0000-000000000000", "controller": True}


def test_operator_writes_and_deletes_objects_with_its_label(fleet: Fleet, namespace: str, operator: Operator) -> None:
    asked = ("-n", namespace)
    assert "created" in operator(*asked, "create", "-f", "-", stdin=config_map("ours", LABEL))
    assert WRITE in operator(*asked, "label", "configmap", "ours", f"{KEY}-"), "nor may it lose the label"
    assert "patched" in operator(*asked, "patch", "configmap", "ours", "--type=merge", "-p", '{"data": {"a": "c"}}')
    assert "deleted" in operator(*asked, "delete", "configmap", "ours")
    assert fleet.get(namespace, "configmap", "ours") == {}


def test_other_users_are_not_bounded(fleet: Fleet, namespace: str, operator: Operator) -> None:
    assert "created" in fleet.kubectl("-n", namespace, "create", "-f", "-", stdin=config_map("theirs"))
    assert "deleted" in fleet.kubectl("-n", namespace, "delete", "configmap", "theirs")


@pytest.mark.usefixtures("operator")
def test_removed_label_of_child_is_restored(fleet: Fleet, namespace: str) -> None:
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool())
    made(fleet, namespace)
    fleet.kubectl("-n", namespace, "label", "configmap", "chat-router", f"{KEY}-")
    fleet.until(lambda: fleet.get(namespace, "configmap", "chat-router")["metadata"]["labels"].get(KEY) == "plumage")
