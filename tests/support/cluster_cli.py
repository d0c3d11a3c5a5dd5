"""The command line against a real API server, as a user runs it. Its pools have statuses as an operator writes them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import forks
from support.crds import Kinds
from support.manifest_mistakes import pool

__all__ = ["HALTED", "NO_GPU", "SERVING", "STUCK", "Plumage", "condition", "keep", "keep_gateway", "plumage"]

Plumage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plumage(kinds: Kinds) -> Plumage:
    """Runs `plumage` with these arguments, the module's namespace and an administrator's kubeconfig. Its output is
    plain."""

    def run(*words: str, kubeconfig: Path | None = None, namespace: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or kinds.server.kubeconfig), "NO_COLOR": "1"}
        more = ["-n", kinds.namespace] if namespace else []
        return forks.run("plumage_cli", *words, *more, environment=environment, timeout=100)

    return run


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def keep(kinds: Kinds, name: str, status: Mapping[str, Any] | None = None, **spec: Any) -> None:
    """A pool on the server, with a status as an operator writes it."""
    document = {**pool(), "metadata": {"name": name}, "spec": {**pool()["spec"], **spec}}
    assert kinds.create(document).accepted
    if status is not None:
        assert kinds.patch("InferencePool", name, {"status": dict(status)}, part="status").accepted


def keep_gateway(kinds: Kinds, name: str, *conditions: Mapping[str, Any], **status: Any) -> None:
    """A gateway on the server that names pool `well`. Without conditions it is one that no operator has seen."""
    document = {
        "apiVersion": "inference.plumage.dev/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": name},
        "spec": {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "well"}}]}]},
    }
    assert kinds.create(document).accepted
    if conditions:
        written = {"observedGeneration": 1, "conditions": [dict(one) for one in conditions], **status}
        assert kinds.patch("InferenceGateway", name, {"status": written}, part="status").accepted


SERVING: dict[str, Any] = {
    "observedGeneration": 1,
    "replicas": 2,
    "readyReplicas": 2,
    "desiredReplicas": 2,
    "hitRatioPercent": 87,
    "model": "Qwen3-8B",
    "address": "http://well-router.crds.svc:8000/v1",
    "conditions": [condition("Ready", "True", "Serving"), condition("Progressing", "False", "Settled")],
    "autoscaling": {"decision": "2 replicas: 40 requests in flight of 64 are 2"},
}
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
STUCK: dict[str, Any] = {
    "observedGeneration": 1,
    "desiredReplicas": 1,
    "conditions": [
        condition("Ready", "False", "NoGpu", NO_GPU),
        condition("EngineReady", "False", "NoGpu", NO_GPU),
        condition("RouterReady", "True", "Serving"),
    ],
}
HALTED: dict[str, Any] = {
    **SERVING,
    "conditions": [condition("Ready", "True", "Serving"), condition("Progressing", "False", "RolloutHalted")],
}
