"""The routers of a gateway: Deployment, Service, ConfigMap. One process serves all pools, and follows its file."""

from __future__ import annotations

import json
from typing import Any

from plumage.api.v1alpha1.router import RouterLimits
from plumage.newer import marked
from plumage_operator.children import settings
from plumage_operator.children.pods import deployment
from plumage_operator.children.router import ROLLING, build_pod
from plumage_operator.children.scene import Child, GatewayScene
from plumage_operator.hashing import without

__all__ = ["LIVE", "build_config", "build_deployment", "build_service"]

LIVE = ("limits", "timeouts", "pools")
"""Of the file: what a front takes up while it runs (`plumage_router.front`). Pools come and go so, unless the pods
need something for it: a tokenizer's volume, a directory's Secret, a longer grace period."""


def build_config(scene: GatewayScene) -> Child:
    """Its settings, and of each pool the replicas that people cordoned."""
    files: dict[str, Any] = {"router.json": marked(settings.gateway(scene))}
    for one in scene.served:
        files[settings.cordoned_file(one.scene.metadata.name)] = {"cordoned": sorted(one.cordoned)}
    data = {name: json.dumps(content, sort_keys=True, indent=1) for name, content in files.items()}
    return scene.child("v1", "ConfigMap", "gateway", {"data": data})


def build_service(scene: GatewayScene) -> Child:
    """The gateway's address: a port for each listener."""
    service = scene.gateway.spec.service
    ports = [
        {"name": listener.name, "port": listener.port, "targetPort": "http", "protocol": "TCP"}
        for listener in scene.gateway.spec.listeners
    ]
    spec = {"type": service.type, "selector": scene.selector("gateway"), "ports": ports}
    return scene.child("v1", "Service", "gateway", {"spec": spec}, dict(service.annotations))


def build_deployment(scene: GatewayScene) -> Child:
    """What it takes from a changed file while it runs restarts nothing."""
    spec = scene.gateway.spec
    pod = build_pod(
        scene,
        "gateway",
        [one.scene for one in scene.served],
        drain=settings.longest_drain(scene),
        spec=spec,
        limits=RouterLimits(),
    )
    restarts = [without(settings.gateway(scene), LIVE)]
    return deployment(scene, "gateway", pod, replicas=spec.replicas, strategy=ROLLING, restarts=restarts)
