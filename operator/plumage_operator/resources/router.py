"""The routers of a pool: Deployment, Services, ConfigMap. Gateways share the pod. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from plumage.api.v1alpha1 import InferenceGatewaySpec
from plumage.api.v1alpha1.exposure import EndpointPickerSpec, TlsSpec
from plumage.api.v1alpha1.router import AuthSpec, RouterLimits, RouterSpec
from plumage.cluster import (
    CONFIG_FOLDER,
    ENDPOINT_PICKER_PORT,
    LIVE_ROUTER_SETTINGS,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    Component,
    picker_service,
)
from plumage.settings.router_config import CordonedReplicas
from plumage.version_skew import marked
from plumage_operator.config import OperatorConfig
from plumage_operator.resources import settings
from plumage_operator.resources.context import SERVES_TLS, Child, ChildOwner, PoolContext
from plumage_operator.resources.model_files import tokenizer_files
from plumage_operator.resources.settings import keys_mount, keys_volume
from plumage_operator.resources.workload import (
    API_MOUNT,
    CONFIG_MOUNT,
    POD_NAME,
    TERMINATION_MESSAGE,
    TMP_MOUNT,
    MountedSecret,
    api_volume,
    config_volume,
    container_security,
    deployment,
    http_probe,
    placement_fields,
    pod_security,
    router_defaults,
    scratch_volume,
    with_defaults,
)

__all__ = [
    "ROLLING",
    "build_config",
    "build_deployment",
    "build_picker_service",
    "build_pod",
    "build_service",
    "config_with_cordons",
    "port_name",
    "service_port",
    "tls_marks",
]

ROLLING: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

_AFTER_DRAIN = 15  # seconds


def build_config(context: PoolContext, cordoned: Sequence[str]) -> Child:
    """The settings file, and the names of cordoned replicas."""
    files = {
        "router.json": marked(settings.router_settings(context).written()),
        settings.CORDONED_FILE: CordonedReplicas(cordoned=tuple(sorted(cordoned))).written(),
    }
    data = {name: json.dumps(content, sort_keys=True, indent=1) for name, content in files.items()}
    return context.child("v1", "ConfigMap", "router", {"data": data})


def config_with_cordons(context: PoolContext, live: Mapping[str, Any], cordoned: Sequence[str]) -> Child:
    """The settings of a live ConfigMap with the present cordons: of a paused pool nothing else changes."""
    now = build_config(context, cordoned)["data"][settings.CORDONED_FILE]
    data = {**(live.get("data") or {}), settings.CORDONED_FILE: now}
    return context.child("v1", "ConfigMap", "router", {"data": data})


def build_service(context: PoolContext) -> Child:
    """The pool's address."""
    router = context.pool.spec.router
    service = router.service
    spec = {
        "type": service.type,
        "selector": context.selector("router"),
        "ports": [service_port(port_name(router.tls), service.port, router.tls)],
    }
    return context.child("v1", "Service", "router", {"spec": spec}, dict(service.annotations))


def build_picker_service(context: PoolContext, picker: EndpointPickerSpec) -> Child:
    """Where proxies ask the endpoint picker. It is not the clients' Service, which may be open to other networks: the
    picker gives the engine key away. `appProtocol`: HTTP/2, without TLS or with it."""
    tls = context.pool.spec.router.tls
    name = _picker_port_name(tls)
    protocol = "kubernetes.io/h2c" if tls is None else "https"
    port = {"name": name, "port": picker.port, "targetPort": name, "protocol": "TCP", "appProtocol": protocol}
    spec = {"type": "ClusterIP", "selector": context.selector("router"), "ports": [port]}
    return context.child("v1", "Service", "router", {"spec": spec}, name=picker_service(context.pool.metadata.name))


def _picker_port_name(tls: TlsSpec | None) -> str:
    """As for clients, a port with TLS has another name."""
    return "picker" if tls is None else "picker-tls"


def port_name(tls: TlsSpec | None) -> str:
    """The name of the clients' port, of pods and of the Service.

    With TLS pods have another port than without. So while a rollout adds TLS, the Service has only pods that have it.
    """
    return "http" if tls is None else "https"


def service_port(name: str, port: int, tls: TlsSpec | None) -> dict[str, Any]:
    """A port of a Service. `appProtocol` says to ingress controllers and meshes that the pods have TLS."""
    protocol = {} if tls is None else {"appProtocol": "https"}
    return {"name": name, "port": port, "targetPort": port_name(tls), "protocol": "TCP", **protocol}


def tls_marks(tls: TlsSpec | None) -> dict[str, str]:
    """Annotations of the pods."""
    return {} if tls is None else {SERVES_TLS: "true"}


def build_deployment(context: PoolContext) -> Child:
    """Settings that a running router reloads from its file restart no pod."""
    restarts = [settings.router_settings(context).written(without=LIVE_ROUTER_SETTINGS)]
    router = context.pool.spec.router
    return deployment(
        context,
        "router",
        _pod(context),
        replicas=router.replicas,
        strategy=ROLLING,
        restarts=restarts,
        marks=tls_marks(router.tls),
    )


def _pod(context: PoolContext) -> dict[str, Any]:
    router = context.pool.spec.router
    drain = context.pool.spec.rollout.drain_timeout_seconds
    return build_pod(context, "router", [context], drain=drain, spec=router, limits=router.limits)


def build_pod(
    owner: ChildOwner,
    component: Component,
    pools: Sequence[PoolContext],
    *,
    drain: int,
    spec: RouterSpec | InferenceGatewaySpec,
    limits: RouterLimits,
) -> dict[str, Any]:
    """A pod that routes to these pools.

    drain: seconds that it waits for requests in flight.
    spec: its scheduling, resources and keys.
    limits: how much its router accepts.
    """
    places, config = [tokenizer_files(context) for context in pools], owner.config
    fetch = [container for place in places for container in place.fetch]
    keys = [*_keys(spec.auth), *settings.port_certificate(spec.tls)]
    trusted = [secret for context in pools for secret in settings.engine_trust(context)]
    key_mounts = [secret.as_mount() for secret in (*keys, *trusted)]
    mounts = [mount for place in places for mount in place.mounts]
    mounts += [mount for context in pools for mount in (keys_mount(context), *settings.directory_mounts(context))]
    volumes = [volume for place in places for volume in place.volumes]
    volumes += [volume for context in pools for volume in settings.directory_volumes(context)]
    several = component == "gateway"  # without a Secret only its pool is not served
    volumes += [keys_volume(context, optional=several) for context in pools]
    volumes += [secret.as_volume(optional=several) for secret in trusted]
    pull = {"imagePullSecrets": [{"name": name} for name in config.pull_secrets]} if config.pull_secrets else {}
    resources = with_defaults(spec.resources, router_defaults(limits))
    return {
        "serviceAccountName": owner.name(component),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": drain + settings.LEAVE_SECONDS + _AFTER_DRAIN,
        **({"initContainers": fetch} if fetch else {}),
        "containers": [_container(config, resources, [*mounts, *key_mounts], spec)],
        "volumes": [
            config_volume(owner.name(component)), api_volume(), scratch_volume(), *volumes,
            *(secret.as_volume() for secret in keys),
        ],
        **placement_fields(spec, owner.selector(component)),
        **pull,
    }  # fmt: skip


def _container(
    config: OperatorConfig,
    resources: Mapping[str, Any],
    mounts: Sequence[dict[str, Any]],
    spec: RouterSpec | InferenceGatewaySpec,
) -> dict[str, Any]:
    tls = spec.tls
    secure = tls is not None
    picks = isinstance(spec, RouterSpec) and spec.endpoint_picker is not None
    port = {"name": _picker_port_name(tls), "containerPort": ENDPOINT_PICKER_PORT, "protocol": "TCP"}
    picker = [port] if picks else []
    return {
        "name": "router",
        "image": config.image,
        "imagePullPolicy": config.pull_policy,
        "command": ["python3", "-m", "plumage_router"],
        "args": [f"--config={CONFIG_FOLDER}/router.json"],
        "env": [POD_NAME],
        "ports": [
            {"name": port_name(tls), "containerPort": ROUTER_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": ROUTER_METRICS_PORT, "protocol": "TCP"},
            *picker,
        ],
        "startupProbe": http_probe("/healthz", ROUTER_PORT, period=1, failures=60, tls=secure),
        "readinessProbe": http_probe("/health", ROUTER_PORT, period=5, failures=2, tls=secure),
        "livenessProbe": http_probe("/healthz", ROUTER_PORT, period=10, failures=6, timeout=5, tls=secure),
        "resources": resources,
        "volumeMounts": [CONFIG_MOUNT, API_MOUNT, TMP_MOUNT, *mounts],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
    }


def _keys(auth: AuthSpec) -> list[MountedSecret]:
    """Secrets with the keys of clients and of the admin endpoints."""
    kinds = (
        ("keys", settings.KEYS_FOLDER, auth.api_keys_ref, "keys"),
        ("admin", settings.ADMIN_FOLDER, auth.admin_key_ref, "key"),
    )
    return [
        MountedSecret(volume, folder, ref.name, {ref.key: path})
        for volume, folder, ref, path in kinds
        if ref is not None
    ]
