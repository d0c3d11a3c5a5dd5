"""The directory that Plumage runs for a pool: one Valkey without persistence. When it starts empty, the agents publish
again; while it is away, routers go on without it."""

from __future__ import annotations

from typing import Any

from plumage.cluster import DIRECTORY_PORT, selector_of
from plumage_operator.resources.context import Child, Scene
from plumage_operator.resources.workload import (
    MIB,
    TELLS_WHY,
    TMP_MOUNT,
    Defaults,
    container_security,
    deployment,
    filled,
    placed,
    pod_security,
    scratch_volume,
)

__all__ = ["build_deployment", "build_service"]


def build_service(scene: Scene) -> Child:
    """For agents and routers."""
    spec = {
        "type": "ClusterIP",
        "selector": selector_of(scene.pool.metadata.name, "directory"),
        "ports": [{"name": "redis", "port": DIRECTORY_PORT, "targetPort": "redis", "protocol": "TCP"}],
    }
    return scene.child("v1", "Service", "directory", {"spec": spec})


def build_deployment(scene: Scene) -> Child:
    """Recreate: two servers behind one Service would each know a half."""
    return deployment(scene, "directory", _pod(scene), replicas=1, strategy={"type": "Recreate"})


def _pod(scene: Scene) -> dict[str, Any]:
    managed = scene.pool.spec.directory.managed
    memory = int(managed.max_memory)
    probe: dict[str, Any] = {"tcpSocket": {"port": DIRECTORY_PORT}, "periodSeconds": 2, "timeoutSeconds": 2}
    pull = {"imagePullSecrets": [{"name": name} for name in scene.site.pull_secrets]} if scene.site.pull_secrets else {}
    container: dict[str, Any] = {
        "name": "directory",
        "image": scene.site.image,
        "imagePullPolicy": scene.site.pull_policy,
        "command": ["python3", "-m", "plumage.directory.standalone"],
        "args": [f"--port={DIRECTORY_PORT}", f"--max-memory={memory}"],
        "ports": [{"name": "redis", "containerPort": DIRECTORY_PORT, "protocol": "TCP"}],
        "readinessProbe": {**probe, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        # Buffers of clients and fragmentation lie above what Valkey counts.
        "resources": filled(managed.resources, Defaults("50m", str(memory), str(memory * 3 // 2 + 64 * MIB))),
        "volumeMounts": [TMP_MOUNT],
        "securityContext": container_security(),
        **TELLS_WHY,
    }
    return {
        "serviceAccountName": scene.name("directory"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [scratch_volume()],
        **placed(managed, None),
        **pull,
    }
