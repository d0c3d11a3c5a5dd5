"""The routers of a pool: Deployment, Service, ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import InferenceGatewaySpec
from plumage.api.v1alpha1.router import AuthSpec, RouterLimits, RouterSpec
from plumage.cluster import CONFIG_FOLDER, LIVE_ROUTER_SETTINGS, ROUTER_METRICS_PORT, ROUTER_PORT, Component
from plumage.newer import marked
from plumage_operator.config import Site
from plumage_operator.resources import settings
from plumage_operator.resources.context import Child, Owner, Scene
from plumage_operator.resources.model_files import tokenizer_place
from plumage_operator.resources.settings import keys_mount, keys_volume, without
from plumage_operator.resources.workload import (
    API_MOUNT,
    CONFIG_MOUNT,
    POD_NAME,
    TELLS_WHY,
    TMP_MOUNT,
    api_volume,
    config_volume,
    container_security,
    deployment,
    filled,
    http_probe,
    placed,
    pod_security,
    router_defaults,
    scratch_volume,
    secret_volume,
)

__all__ = ["ROLLING", "build_config", "build_deployment", "build_pod", "build_service", "with_cordons"]

ROLLING: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

_AFTER_DRAIN = 15  # seconds


def build_config(scene: Scene, cordoned: Sequence[str]) -> Child:
    """Its settings, and the replicas that people cordoned."""
    files = {"router.json": marked(settings.router(scene)), settings.CORDONED_FILE: {"cordoned": sorted(cordoned)}}
    data = {name: json.dumps(content, sort_keys=True, indent=1) for name, content in files.items()}
    return scene.child("v1", "ConfigMap", "router", {"data": data})


def with_cordons(scene: Scene, live: Mapping[str, Any], cordoned: Sequence[str]) -> Child:
    """The settings that are there, with the replicas that people cordoned now: of a paused pool nothing else counts."""
    now = build_config(scene, cordoned)["data"][settings.CORDONED_FILE]
    data = {**(live.get("data") or {}), settings.CORDONED_FILE: now}
    return scene.child("v1", "ConfigMap", "router", {"data": data})


def build_service(scene: Scene) -> Child:
    """The pool's address."""
    service = scene.pool.spec.router.service
    spec = {
        "type": service.type,
        "selector": scene.selector("router"),
        "ports": [{"name": "http", "port": service.port, "targetPort": "http", "protocol": "TCP"}],
    }
    return scene.child("v1", "Service", "router", {"spec": spec}, dict(service.annotations))


def build_deployment(scene: Scene) -> Child:
    """What it takes from a changed file while it runs restarts nothing."""
    restarts = [without(settings.router(scene), tuple(map(to_camel, LIVE_ROUTER_SETTINGS)))]
    replicas = scene.pool.spec.router.replicas
    return deployment(scene, "router", _pod(scene), replicas=replicas, strategy=ROLLING, restarts=restarts)


def _pod(scene: Scene) -> dict[str, Any]:
    router = scene.pool.spec.router
    drain = scene.pool.spec.rollout.drain_timeout_seconds
    return build_pod(scene, "router", [scene], drain=drain, spec=router, limits=router.limits)


def build_pod(
    owner: Owner,
    component: Component,
    pools: Sequence[Scene],
    *,
    drain: int,
    spec: RouterSpec | InferenceGatewaySpec,
    limits: RouterLimits,
) -> dict[str, Any]:
    """A pod that routes to these pools. drain: seconds that it waits for what is under way. spec: its scheduling,
    resources and keys. limits: what its router takes on."""
    places, site = [tokenizer_place(scene) for scene in pools], owner.site
    fetch = [container for place in places for container in place.fetch]
    keys = _keys(spec.auth)
    key_mounts = [{"name": volume, "mountPath": folder, "readOnly": True} for volume, folder, *_ in keys]
    mounts = [mount for place in places for mount in place.mounts]
    mounts += [mount for scene in pools for mount in (keys_mount(scene), *settings.directory_mounts(scene))]
    volumes = [volume for place in places for volume in place.volumes]
    volumes += [volume for scene in pools for volume in settings.directory_volumes(scene)]
    volumes += [keys_volume(scene, optional=component == "gateway") for scene in pools]
    pull = {"imagePullSecrets": [{"name": name} for name in site.pull_secrets]} if site.pull_secrets else {}
    return {
        "serviceAccountName": owner.name(component),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": drain + settings.LEAVE_SECONDS + _AFTER_DRAIN,
        **({"initContainers": fetch} if fetch else {}),
        "containers": [_container(site, filled(spec.resources, router_defaults(limits)), [*mounts, *key_mounts])],
        "volumes": [
            config_volume(owner.name(component)), api_volume(), scratch_volume(), *volumes,
            *(secret_volume(volume, name, {key: path}) for volume, _, name, key, path in keys),
        ],
        **placed(spec, owner.selector(component)),
        **pull,
    }  # fmt: skip


def _container(site: Site, resources: Mapping[str, Any], mounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "router",
        "image": site.image,
        "imagePullPolicy": site.pull_policy,
        "command": ["python3", "-m", "plumage_router"],
        "args": [f"--config={CONFIG_FOLDER}/router.json"],
        "env": [POD_NAME],
        "ports": [
            {"name": "http", "containerPort": ROUTER_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": ROUTER_METRICS_PORT, "protocol": "TCP"},
        ],
        "startupProbe": http_probe("/healthz", ROUTER_PORT, period=1, failures=60),
        "readinessProbe": http_probe("/health", ROUTER_PORT, period=5, failures=2),
        "livenessProbe": http_probe("/healthz", ROUTER_PORT, period=10, failures=6, timeout=5),
        "resources": resources,
        "volumeMounts": [CONFIG_MOUNT, API_MOUNT, TMP_MOUNT, *mounts],
        "securityContext": container_security(),
        **TELLS_WHY,
    }


def _keys(auth: AuthSpec) -> list[tuple[str, str, str, str, str]]:
    """Secrets with keys of clients and of the admin endpoints: volume, folder, Secret, its key, the file."""
    kinds = (
        ("keys", settings.KEYS_FOLDER, auth.api_keys_ref, "keys"),
        ("admin", settings.ADMIN_FOLDER, auth.admin_key_ref, "key"),
    )
    return [(volume, folder, ref.name, ref.key, path) for volume, folder, ref, path in kinds if ref is not None]
