"""The routers of a gateway: Deployment, Service, ConfigMap. One process serves all pools and follows its file. Pure."""

from __future__ import annotations

import json
from typing import Any

from plumage.api.v1alpha1.pool import RolloutSpec
from plumage.api.v1alpha1.router import RouterLimits
from plumage.settings.router import body_memory, tracing_config
from plumage.settings.router_config import (
    CordonedReplicas,
    LimitsConfig,
    MultiPoolConfig,
    NamedPoolConfig,
    TimeoutsConfig,
)
from plumage.version_skew import marked
from plumage_operator.resources.context import Child, GatewayContext, ServedPool
from plumage_operator.resources.router import ROLLING, build_pod, service_port, tls_marks
from plumage_operator.resources.settings import (
    LEAVE_SECONDS,
    router_auth,
    router_listen,
    router_settings,
)
from plumage_operator.resources.workload import deployment

__all__ = [
    "LIVE",
    "build_config",
    "build_deployment",
    "build_service",
    "cordoned_file",
    "gateway_settings",
    "longest_drain",
]

LIVE = ("limits", "timeouts", "pools", "shared_models", "tracing")
"""Settings that a running gateway reloads from its file (`plumage_router.multi_pool`).

Pools are among them. They restart the pods only where these need something new for a pool: a tokenizer's volume, a
directory's Secret, a longer grace period.
"""


def build_config(context: GatewayContext) -> Child:
    """The settings file, and the names of each pool's cordoned replicas."""
    files: dict[str, Any] = {"router.json": marked(gateway_settings(context).written())}
    for one in context.served:
        names = CordonedReplicas(cordoned=tuple(sorted(one.cordoned)))
        files[cordoned_file(one.context.metadata.name)] = names.written()
    data = {name: json.dumps(content, sort_keys=True, indent=1) for name, content in files.items()}
    return context.child("v1", "ConfigMap", "gateway", {"data": data})


def build_service(context: GatewayContext) -> Child:
    """The gateway's address, with a port for each listener."""
    service = context.gateway.spec.service
    tls = context.gateway.spec.tls
    ports = [service_port(listener.name, listener.port, tls) for listener in context.gateway.spec.listeners]
    spec = {"type": service.type, "selector": context.selector("gateway"), "ports": ports}
    return context.child("v1", "Service", "gateway", {"spec": spec}, dict(service.annotations))


def build_deployment(context: GatewayContext) -> Child:
    """Builds the Deployment. Reloadable settings do not restart pods."""
    spec = context.gateway.spec
    pod = build_pod(
        context,
        "gateway",
        [one.context for one in context.served],
        drain=longest_drain(context),
        spec=spec,
        limits=RouterLimits(),
    )
    restarts = [gateway_settings(context).written(without=LIVE)]
    marks = tls_marks(spec.tls)
    return deployment(context, "gateway", pod, replicas=spec.replicas, strategy=ROLLING, restarts=restarts, marks=marks)


def gateway_settings(context: GatewayContext) -> MultiPoolConfig:
    """The settings file of a router that serves several pools."""
    spec = context.gateway.spec
    limits = RouterLimits()
    return MultiPoolConfig(
        gateway=context.metadata.name,
        listen=router_listen(spec.tls),
        auth=router_auth(context.config, spec.auth),
        limits=LimitsConfig(
            max_body_bytes=int(limits.max_body_bytes),
            max_buffered_bytes=body_memory(limits, spec.resources),
            max_connections=limits.max_connections,
            max_in_flight=spec.flow_control.max_in_flight,
        ),
        timeouts=TimeoutsConfig(leave=LEAVE_SECONDS, drain=longest_drain(context)),
        access_log=spec.access_log,
        tracing=tracing_config(spec.tracing, context.name("gateway")),
        pools=tuple(_behind_gateway(one, context) for one in context.served),
        shared_models=context.shared,
    )


def longest_drain(context: GatewayContext) -> int:
    """Seconds that requests may take to finish: the longest of all pools, and a pool's default if there is none."""
    drains = [one.context.pool.spec.rollout.drain_timeout_seconds for one in context.served]
    return max(drains, default=RolloutSpec().drain_timeout_seconds)


def cordoned_file(pool: str) -> str:
    """The key of a gateway's ConfigMap with one pool's cordoned replicas."""
    return f"cordoned-{pool}.json"


def _behind_gateway(served: ServedPool, context: GatewayContext) -> NamedPoolConfig:
    spec = context.gateway.spec
    alone = router_settings(served.context, cordoned_file(served.context.metadata.name))
    known = (alone.model.name, *alone.model.adapters)
    model = alone.model.model_copy(update={"aliases": tuple(name for name in served.names if name not in known)})
    own = {name: getattr(spec, name) for name in ("access_log", "usage_log", "allowed_request_fields", "sort_tools")}
    own["model"] = model
    return NamedPoolConfig(**{**alone.given(without=("listen", "auth", "tracing")), **own}, names=served.names)
