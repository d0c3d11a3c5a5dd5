"""The directory that the operator runs for a pool: one Valkey without persistence. Pure.

When it starts empty, the agents publish again. While it is down, routers work without it.
"""

from __future__ import annotations

from typing import Any

from plumage.cluster import DIRECTORY_PORT, selector_of
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.workload import (
    MIB,
    TERMINATION_MESSAGE,
    TMP_MOUNT,
    ResourceDefaults,
    container_security,
    deployment,
    placement_fields,
    pod_security,
    scratch_volume,
    with_defaults,
)

__all__ = ["build_deployment", "build_service"]


def build_service(context: PoolContext) -> Child:
    """The address for agents and routers."""
    spec = {
        "type": "ClusterIP",
        "selector": selector_of(context.pool.metadata.name, "directory"),
        "ports": [{"name": "redis", "port": DIRECTORY_PORT, "targetPort": "redis", "protocol": "TCP"}],
    }
    return context.child("v1", "Service", "directory", {"spec": spec})


def build_deployment(context: PoolContext) -> Child:
    """Strategy Recreate: two servers behind one Service would each have half of the entries."""
    return deployment(context, "directory", _pod(context), replicas=1, strategy={"type": "Recreate"})


def _pod(context: PoolContext) -> dict[str, Any]:
    managed = context.pool.spec.directory.managed
    memory = int(managed.max_memory)
    probe: dict[str, Any] = {"tcpSocket": {"port": DIRECTORY_PORT}, "periodSeconds": 2, "timeoutSeconds": 2}
    pull = (
        {"imagePullSecrets": [{"name": name} for name in context.config.pull_secrets]}
        if context.config.pull_secrets
        else {}
    )
    container: dict[str, Any] = {
        "name": "directory",
        "image": context.config.image,
        "imagePullPolicy": context.config.pull_policy,
        "command": ["python3", "-m", "plumage.directory.server.standalone"],
        "args": [f"--port={DIRECTORY_PORT}", f"--max-memory={memory}"],
        "ports": [{"name": "redis", "containerPort": DIRECTORY_PORT, "protocol": "TCP"}],
        "readinessProbe": {**probe, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        # Client buffers and fragmentation come on top of the memory that Valkey counts.
        "resources": with_defaults(
            managed.resources, ResourceDefaults("50m", str(memory), str(memory * 3 // 2 + 64 * MIB))
        ),
        "volumeMounts": [TMP_MOUNT],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
    }
    return {
        "serviceAccountName": context.name("directory"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [scratch_volume()],
        **placement_fields(managed, None),
        **pull,
    }
