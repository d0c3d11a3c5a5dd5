"""What all pods have in common: restricted security, identity, scratch space, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from plumage.cluster import AUDIENCE, CONFIG_FOLDER, TOKEN_FOLDER, Component
from plumage_operator.children.scene import CONFIG_HASH, Child, Owner
from plumage_operator.hashing import digest

__all__ = [
    "API_MOUNT",
    "CONFIG_MOUNT",
    "IDENTITY_MOUNT",
    "POD_NAME",
    "TELLS_WHY",
    "TMP_MOUNT",
    "USER",
    "api_volume",
    "config_volume",
    "container_security",
    "deployment",
    "http_probe",
    "identity_volume",
    "memory_volume",
    "pod_security",
    "scratch_volume",
    "secret_volume",
]

USER: Final = 10001
"""Numeric, because `runAsNonRoot` can't look a name up."""
_API_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 3600  # the kubelet renews it at four fifths

CONFIG_MOUNT: Final = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
IDENTITY_MOUNT: Final = {"name": "identity", "mountPath": TOKEN_FOLDER, "readOnly": True}
API_MOUNT: Final = {"name": "api", "mountPath": _API_FOLDER, "readOnly": True}
TMP_MOUNT: Final = {"name": "tmp", "mountPath": "/tmp"}
POD_NAME: Final = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
_OFF_ITS_NODE: Final = {"hostNetwork": False, "hostPID": False, "hostIPC": False}
"""Sent so that they are ours, and put back where somebody sets one: no NetworkPolicy holds a pod in its node's network.
The API server stores none of them, so they are no part of a template's hash, nor of ours."""


def pod_security() -> dict[str, Any]:
    """The pod's half of the restricted pod security standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """The container's half."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def identity_volume() -> dict[str, Any]:
    """By this token pods of a pool know one another; no API server takes it."""
    token = {"audience": AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    return {"name": "identity", "projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": token}]}}


def api_volume() -> dict[str, Any]:
    """What Kubernetes mounts everywhere by itself, here in the containers alone that ask the API server something."""
    sources = [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": "api", "projected": {"defaultMode": 0o440, "sources": sources}}


def config_volume(name: str) -> dict[str, Any]:
    return {"name": "config", "configMap": {"name": name, "defaultMode": 0o440}}


def secret_volume(volume: str, secret: str, items: Mapping[str, str]) -> dict[str, Any]:
    """items: keys of the Secret and the files they become."""
    files = [{"key": key, "path": path} for key, path in items.items()]
    return {"name": volume, "secret": {"secretName": secret, "defaultMode": 0o440, "items": files}}


def scratch_volume(name: str = "tmp", limit: str | None = "1Gi") -> dict[str, Any]:
    return {"name": name, "emptyDir": {} if limit is None else {"sizeLimit": limit}}


def memory_volume(name: str, limit: str) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


TELLS_WHY: Final = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""A container that ends says why in its status, by its log's last lines, and the pool's condition repeats it."""


def http_probe(path: str, port: int, *, period: int, failures: int, timeout: int = 2) -> dict[str, Any]:
    """Seconds between two looks, and looks that may fail in a row."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def deployment(
    owner: Owner,
    component: Component,
    pod: Mapping[str, Any],
    *,
    replicas: int,
    strategy: Mapping[str, Any],
    restarts: Sequence[Any] = (),
    deadline: int = 600,
) -> Child:
    """A Deployment of one part. restarts: settings outside of the template that a pod reads at start only, so that
    pods are replaced when they change. deadline: seconds without progress after which Kubernetes says so. `paused` is
    sent for the same reason as what is off in a pod: a rollout that somebody else halts goes on."""
    annotations = {CONFIG_HASH: digest([pod, *restarts])}
    metadata = {"labels": owner.labels(component), "annotations": annotations}
    spec = {
        "paused": False,
        "replicas": replicas,
        "selector": {"matchLabels": owner.selector(component)},
        "strategy": strategy,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": deadline,
        "template": {"metadata": metadata, "spec": {**pod, **_OFF_ITS_NODE}},
    }
    return owner.child("apps/v1", "Deployment", component, {"spec": spec})
