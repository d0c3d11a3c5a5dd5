"""The commands that the README and the chart's notes recommend after an install, against a cluster with a pool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kube_access import Access
from support.kube_install import OPERATOR_NAMESPACE, RELEASE, Pool

_SCRIPTS = Path(sys.executable).parent  # the folder of `plumage` and `kubectl-plumage`


def _ran(access: Access, *command: str) -> str:
    """The output of a command, run with this cluster's kubeconfig. It must end with status 0."""
    path = os.pathsep.join((str(access.programs["kubectl"].parent), str(_SCRIPTS), os.environ["PATH"]))
    environment = {**os.environ, "KUBECONFIG": str(access.kubeconfig), "NO_COLOR": "1", "PATH": path}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_helm_test_passes(access: Access, installed: None) -> None:
    output = access.helm("test", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--logs", "--timeout", "5m")
    assert "Phase:          Succeeded" in output
    assert "ok: the operator is healthy" in output
    assert "ok: pools of all namespaces" in output


@pytest.mark.parametrize("command", [["plumage", "doctor", "--cluster"], ["kubectl", "plumage", "doctor"]])
def test_doctor_reports_healthy_cluster(access: Access, pool: Pool, command: list[str]) -> None:
    output = _ran(access, *command, "-n", pool.namespace)
    assert [line for line in output.splitlines() if not line.lstrip().startswith("ok")] == []
    for word in ("the API server", "the CRD of InferencePool", "the CRD of InferenceGateway", "is the active operator"):
        assert word in output
    assert f"operator {OPERATOR_NAMESPACE}/plumage-operator is up" in output
    assert f"pool {pool.namespace}/{pool.name} serves tiny-chat with 2 of 2 replicas" in output


@pytest.mark.parametrize("command", [["plumage", "status", "--cluster"], ["kubectl", "plumage", "get"]])
def test_get_shows_pool_with_pods(access: Access, pool: Pool, command: list[str]) -> None:
    output = _ran(access, *command, pool.name, "-n", pool.namespace)
    pods = access.kubectl("-n", pool.namespace, "get", "pods", "-o", "name").split()
    shown = [name for pod in pods if (name := pod.removeprefix("pod/")).startswith(f"{pool.name}-")]
    assert len(shown) == 5, "two engines, two routers, a directory"
    assert all(name in output for name in shown)
    assert "Ready" in output


def test_get_shows_all_pools_in_one_table(access: Access, pool: Pool) -> None:
    found = json.loads(_ran(access, "kubectl", "plumage", "get", "--all-namespaces", "--json"))
    assert f"{pool.namespace}/{pool.name}" in {f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in found}
    header, *rows = _ran(access, "kubectl", "plumage", "get", "-A").splitlines()
    assert "NAMESPACE" in header.upper()
    assert [row for row in rows if pool.name in row]
