"""The routers of a pool: Deployment, Service, ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from plumage.cluster import CONFIG_FOLDER, LIVE_ROUTER_SETTINGS, ROUTER_PORT, selector_of
from plumage_operator.children import settings
from plumage_operator.children.models import tokenizer_place
from plumage_operator.children.pods import (
    API_MOUNT,
    CONFIG_MOUNT,
    POD_NAME,
    TELLS_WHY,
    TMP_MOUNT,
    api_volume,
    config_volume,
    container_security,
    deployment,
    http_probe,
    pod_security,
    scratch_volume,
    secret_volume,
)
from plumage_operator.children.scene import Child, Scene
from plumage_operator.hashing import without

__all__ = ["build_config", "build_deployment", "build_service"]

_AFTER_DRAIN = 15  # seconds
_REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}  # its bounds are in its configuration


def build_config(scene: Scene, cordoned: Sequence[str]) -> Child:
    """Its settings, and the replicas that people cordoned."""
    files = {"router.json": settings.router(scene), settings.CORDONED_FILE: {"cordoned": sorted(cordoned)}}
    data = {name: json.dumps(content, sort_keys=True, indent=1) for name, content in files.items()}
    return scene.child("v1", "ConfigMap", "router", {"data": data})


def build_service(scene: Scene) -> Child:
    """The pool's address."""
    service = scene.pool.spec.router.service
    spec = {
        "type": service.type,
        "selector": selector_of(scene.pool.metadata.name, "router"),
        "ports": [{"name": "http", "port": service.port, "targetPort": "http", "protocol": "TCP"}],
    }
    return scene.child("v1", "Service", "router", {"spec": spec}, dict(service.annotations))


def build_deployment(scene: Scene) -> Child:
    """What it takes from a changed file while it runs restarts nothing."""
    restarts = [without(settings.router(scene), LIVE_ROUTER_SETTINGS)]
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    replicas = scene.pool.spec.router.replicas
    return deployment(scene, "router", _pod(scene), replicas=replicas, strategy=rolling, restarts=restarts)


def _pod(scene: Scene) -> dict[str, Any]:
    place, keys = tokenizer_place(scene), _keys(scene)
    drain = scene.pool.spec.rollout.drain_timeout_seconds
    pull = {"imagePullSecrets": [{"name": name} for name in scene.site.pull_secrets]} if scene.site.pull_secrets else {}
    return {
        "serviceAccountName": scene.name("router"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": drain + settings.LEAVE_SECONDS + _AFTER_DRAIN,
        **({"initContainers": list(place.fetch)} if place.fetch else {}),
        "containers": [_container(scene)],
        "volumes": [
            config_volume(scene.name("router")), api_volume(), scratch_volume(),
            *place.volumes, *settings.directory_volumes(scene),
            *(secret_volume(volume, name, {key: path}) for volume, _, name, key, path in keys),
        ],
        **pull,
    }  # fmt: skip


def _container(scene: Scene) -> dict[str, Any]:
    keys = [{"name": volume, "mountPath": folder, "readOnly": True} for volume, folder, *_ in _keys(scene)]
    given = scene.pool.spec.router.resources
    requests = {**_REQUESTS, **{name: str(amount) for name, amount in given.requests.items()}}
    limits = {name: str(amount) for name, amount in given.limits.items()}
    return {
        "name": "router",
        "image": scene.site.image,
        "imagePullPolicy": scene.site.pull_policy,
        "command": ["python3", "-m", "plumage_router"],
        "args": [f"--config={CONFIG_FOLDER}/router.json"],
        "env": [POD_NAME],
        "ports": [{"name": "http", "containerPort": ROUTER_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/healthz", ROUTER_PORT, period=1, failures=60),
        "readinessProbe": http_probe("/health", ROUTER_PORT, period=5, failures=2),
        "livenessProbe": http_probe("/healthz", ROUTER_PORT, period=10, failures=6, timeout=5),
        "resources": {"requests": requests, **({"limits": limits} if limits else {})},
        "volumeMounts": [
            CONFIG_MOUNT, API_MOUNT, TMP_MOUNT,
            *tokenizer_place(scene).mounts, *settings.directory_mounts(scene), *keys,
        ],
        "securityContext": container_security(),
        **TELLS_WHY,
    }  # fmt: skip


def _keys(scene: Scene) -> list[tuple[str, str, str, str, str]]:
    """Secrets with keys of clients and of the admin endpoints: volume, folder, Secret, its key, the file."""
    auth = scene.pool.spec.router.auth
    kinds = (
        ("keys", settings.KEYS_FOLDER, auth.api_keys_ref, "keys"),
        ("admin", settings.ADMIN_FOLDER, auth.admin_key_ref, "key"),
    )
    return [(volume, folder, ref.name, ref.key, path) for volume, folder, ref, path in kinds if ref is not None]
