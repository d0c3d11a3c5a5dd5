"""`plumage doctor` on a cluster: it names what is missing or wrong, with the remedy. The status is 1 for serious
findings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster_cli import HALTED, NO_GPU, SERVING, STUCK, Plumage, condition, keep, keep_gateway
from support.crds import Kinds
from support.ports import free_ports

from plumage_operator.permissions import IN_POOLS, IN_SYSTEM, Rule

ACCOUNT = "plumage-operator"


@pytest.fixture(scope="module")
def operator(kinds: Kinds) -> Iterator[str]:
    """The Deployment of an operator that can't start here, in the module's namespace."""
    labels = {"app.kubernetes.io/name": "plumage", "app.kubernetes.io/component": "operator"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "plumage-operator", "labels": {**labels, "app.kubernetes.io/version": "0.1.0"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": ACCOUNT, "containers": [{"name": "operator", "image": "none:1"}]},
            },
        },
    }
    kinds.kubectl("create", "-f", "-", stdin=json.dumps(deployment))
    yield ACCOUNT
    kinds.kubectl("delete", "deployment", "plumage-operator", "--wait=false")


def test_doctor_reports_missing_operator(plumage: Plumage) -> None:
    done = plumage("doctor")
    assert done.returncode == 1
    assert "ok  the CRD of InferencePool serves v1alpha1, as this version of plumage expects" in done.stdout
    assert "bad  no operator is installed: pools are not reconciled → helm install" in done.stdout
    assert "ok  nothing serves external.metrics.k8s.io" in done.stdout


def test_doctor_shows_the_root_causes_of_pools(plumage: Plumage, kinds: Kinds) -> None:
    keep(kinds, "well", SERVING)
    keep(kinds, "stuck", STUCK)
    keep(kinds, "unseen")
    keep(kinds, "halted", HALTED)
    kinds.kubectl("annotate", "ppool", "well", "inference.plumage.dev/paused=true")
    output = plumage("doctor").stdout
    pool = f"pool {kinds.namespace}"
    assert f"warn  {pool}/well is paused: the operator changes nothing" in output
    assert f"ok  {pool}/well serves Qwen3-8B with 2 of 2 replicas" in output
    assert f"bad  {pool}/stuck: EngineReady is False, NoGpu: {NO_GPU}" in output
    assert f"bad  {pool}/unseen: no operator has reconciled it" in output
    assert f"warn  {pool}/halted: Progressing is False, RolloutHalted" in output
    assert f"{pool}/halted serves" not in output
    one = plumage("doctor", "stuck").stdout
    assert f"{pool}/well" not in one


def test_doctor_shows_what_a_pool_lacks_that_is_ready(plumage: Plumage, kinds: Kinds) -> None:
    """None of these makes Ready false."""
    ready, settled = SERVING["conditions"]
    lacking = {
        "blind": (ready, settled, condition("Scaling", "False", "MetricMissing", "no figures of chat-router-1")),
        "tuned": (ready, settled, condition("AdaptersReady", "False", "AdapterFailed", "law: not found")),
        "thin": (
            condition("Ready", "True", "Degraded", "1 of 2 replicas"),
            condition("Progressing", "True", "Resizing"),
        ),
    }
    for name, conditions in lacking.items():
        keep(kinds, name, {**SERVING, "conditions": [*conditions]})
    output = plumage("doctor").stdout
    pool = f"pool {kinds.namespace}"
    assert f"warn  {pool}/blind: Scaling is False, MetricMissing: no figures of chat-router-1" in output
    assert f"warn  {pool}/tuned: AdaptersReady is False, AdapterFailed: law: not found" in output
    assert f"warn  {pool}/thin: Ready is True, Degraded: 1 of 2 replicas" in output
    assert not [name for name in lacking if f"{pool}/{name} serves" in output]


def test_doctor_shows_what_gateways_do_not_serve(plumage: Plumage, kinds: Kinds) -> None:
    missing = ("False", "PoolMissing", "there is no InferencePool gone in this namespace")
    half = (condition("Ready", "True", "Serving", "for models chat"), condition("Accepted", *missing))
    keep_gateway(kinds, "half", *half)
    keep_gateway(kinds, "shut", condition("Ready", *missing), condition("Accepted", *missing))
    keep_gateway(kinds, "fresh")
    kinds.kubectl("annotate", "pgw", "half", "inference.plumage.dev/paused=true")
    done = plumage("doctor")
    gateway = f"gateway {kinds.namespace}"
    assert done.returncode == 1
    assert f"ok  {gateway}/half serves: for models chat" in done.stdout
    assert f"warn  {gateway}/half: Accepted is False, PoolMissing: there is no InferencePool gone" in done.stdout
    assert f"warn  {gateway}/half is paused" in done.stdout
    assert f"bad  {gateway}/shut: Ready is False, PoolMissing: there is no InferencePool gone" in done.stdout
    assert f"{gateway}/shut: Accepted" not in done.stdout, "it says the same"
    assert f"bad  {gateway}/fresh: no operator has reconciled it" in done.stdout


def test_doctor_reports_a_crd_of_another_version(plumage: Plumage, kinds: Kinds) -> None:
    crd = "crd/inferencegateways.inference.plumage.dev"
    held = "inference.plumage.dev/schema"
    ours = yaml.safe_load(kinds.kubectl("get", crd, "-o", "yaml").stdout)["metadata"]["annotations"][held]
    kinds.kubectl("annotate", crd, f"{held}=older", "--overwrite")
    try:
        assert f"from another version of plumage (schema older, not {ours})" in plumage("doctor").stdout
    finally:
        kinds.kubectl("annotate", crd, f"{held}={ours}", "--overwrite")


def test_doctor_checks_pods_lease_and_permissions_of_an_operator(plumage: Plumage, kinds: Kinds, operator: str) -> None:
    output = plumage("doctor").stdout
    assert f"bad  operator {kinds.namespace}/plumage-operator is not ready" in output
    assert f"warn  no operator holds the Lease {kinds.namespace}/plumage-operator yet" in output
    account = f"system:serviceaccount:{kinds.namespace}:{operator}"
    assert f"bad  {account} may not list inferencegateways, list inferencepools" in output
    lease(kinds, datetime.now(UTC))
    grant(kinds, operator)
    try:
        output = plumage("doctor").stdout
        assert "ok  pod-1 is the active operator" in output
        assert f"ok  {account} has all permissions that the operator needs" in output
    finally:
        for kind in ("clusterrole", "clusterrolebinding"):
            kinds.kubectl("delete", kind, f"{kinds.namespace}-operator")
    lease(kinds, datetime.now(UTC) - timedelta(minutes=5))
    output = plumage("doctor").stdout
    assert "bad  pod-1 has not renewed the Lease" in output
    assert "pools are not reconciled" in output


def lease(kinds: Kinds, renewed: datetime) -> None:
    spec = {
        "holderIdentity": "pod-1",
        "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "leaseDurationSeconds": 15,
    }
    manifest = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "plumage-operator"},
        "spec": spec,
    }
    kinds.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def grant(kinds: Kinds, account: str) -> None:
    """All rights in the operator's own list."""

    def plain(rule: Rule) -> dict[str, Any]:
        names = {"resourceNames": list(rule.names)} if rule.names else {}
        return {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs), **names}

    api, name = "rbac.authorization.k8s.io", f"{kinds.namespace}-operator"
    role = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [plain(rule) for rule in (*IN_POOLS, *IN_SYSTEM)],
    }
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": kinds.namespace}],
    }
    for document in (role, binding):
        kinds.kubectl("create", "-f", "-", stdin=json.dumps(document))


def test_doctor_compares_node_gpus_with_replica(plumage: Plumage, kinds: Kinds) -> None:
    keep(kinds, "two-gpus", SERVING, engine={"tensorParallelSize": 2})
    keep(kinds, "no-gpu", SERVING, engine={"resources": {"limits": {"nvidia.com/gpu": 0}}})
    name = f"{kinds.namespace}-node"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    kinds.kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        for count, expected in ((1, "bad  1 GPU on 1 of "), (2, "ok  2 GPUs on 1 of ")):
            status = json.dumps({"status": {"allocatable": {"nvidia.com/gpu": str(count)}}})
            kinds.kubectl("patch", "node", name, "--subresource=status", "-p", status)
            assert expected in plumage("doctor", "two-gpus").stdout
        kinds.kubectl(
            "patch", "node", name, "--subresource=status", "-p", '{"status": {"allocatable": {"nvidia.com/gpu": "0"}}}'
        )
        assert "ok  0 GPUs on 0 of " in plumage("doctor", "no-gpu").stdout
    finally:
        kinds.kubectl("delete", "node", name)


def test_doctor_names_provider_of_external_metrics(plumage: Plumage, kinds: Kinds) -> None:
    name = "v1beta1.external.metrics.k8s.io"
    spec = {
        "group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
        "insecureSkipTLSVerify": True, "service": {"name": "keda", "namespace": kinds.namespace},
    }  # fmt: skip
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": name},
        "spec": spec,
    }
    kinds.kubectl("create", "-f", "-", stdin=json.dumps(service))
    try:
        output = plumage("doctor").stdout
        assert f"external.metrics.k8s.io is served by {kinds.namespace}/keda, which does not answer: " in output
    finally:
        kinds.kubectl("delete", "apiservice", name)


def test_doctor_reports_a_user_without_permissions(plumage: Plumage, kinds: Kinds, tmp_path: Path) -> None:
    nobody = changed(kinds, tmp_path, lambda config: config["users"][0].update(user={}))
    done = plumage("doctor", kubeconfig=nobody)
    assert 'warn  can\'t read the operator: deployments.apps is forbidden: User "system:anonymous"' in done.stdout
    assert "→ use a context that may read it" in done.stdout
    refused = plumage("get", kubeconfig=nobody)
    assert refused.returncode == 1
    assert refused.stderr.startswith("plumage: inferencepools.inference.plumage.dev is forbidden")


def test_doctor_reports_unreachable_cluster(plumage: Plumage, kinds: Kinds, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    away = changed(
        kinds, tmp_path, lambda config: config["clusters"][0]["cluster"].update(server=f"https://127.0.0.1:{port}")
    )
    done = plumage("doctor", kubeconfig=away)
    assert done.returncode == 1
    assert done.stdout.startswith(" bad  the API server of ")
    assert "can't be reached" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_doctor_reports_invalid_kubeconfig(plumage: Plumage, tmp_path: Path) -> None:
    assert "there is no kubeconfig" in plumage("get", "--kubeconfig", str(tmp_path / "none")).stderr
    assert "has no context nope, only: " in plumage("get", "--context", "nope").stderr
    broken = tmp_path / "broken"
    broken.write_text("[")
    other = tmp_path / "other"
    other.write_text("[1, 2]")
    for path in (broken, other, tmp_path / "none"):
        done = plumage("get", kubeconfig=path)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "Set KUBECONFIG, or give --kubeconfig" in done.stderr


def changed(kinds: Kinds, folder: Path, change: Any) -> Path:
    """The administrator's kubeconfig with one change."""
    config = yaml.safe_load(kinds.server.kubeconfig.read_text())
    change(config)
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
