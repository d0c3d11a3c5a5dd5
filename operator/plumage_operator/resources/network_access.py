"""Who may reach a component and how: NetworkPolicy, Ingress, HTTPRoute, and PodMonitors for scrapes. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from plumage.api.v1alpha1.exposure import HTTPRouteSpec, IngressSpec
from plumage.cluster import (
    AGENT_PORT,
    COMPONENT_LABEL,
    DIRECTORY_PORT,
    ENGINE_PORT,
    POOL_LABEL,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    Component,
    selector_of,
)
from plumage_operator.resources.context import Child, ChildOwner, GatewayContext, PoolContext

__all__ = ["build_gateway_policy", "build_http_route", "build_ingress", "build_monitor", "build_network_policy"]


def build_network_policy(context: PoolContext, component: Component) -> Child:
    """Limits ingress. Egress stays open, because models are fetched from anywhere."""
    rules = {"engine": _engine_rules, "router": _router_rules, "directory": _directory_rules}[component]
    return _policy(context, component, rules(context))


def build_gateway_policy(context: GatewayContext) -> Child:
    """A gateway's port is open to everybody: its spec names no namespaces."""
    scrapers = [_rule([*map(_namespace, sorted(set(context.config.monitoring)))], ROUTER_METRICS_PORT)]
    return _policy(context, "gateway", [_rule([], ROUTER_PORT), *(scrapers if context.config.monitoring else ())])


def _policy(owner: ChildOwner, component: Component, ingress: list[dict[str, Any]]) -> Child:
    spec = {
        "podSelector": {"matchLabels": owner.selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return owner.child("networking.k8s.io/v1", "NetworkPolicy", component, {"spec": spec})


def _engine_rules(context: PoolContext) -> list[dict[str, Any]]:
    return [
        _rule([_routers(context)], ENGINE_PORT),
        _rule([_own(context, "engine"), _operator(context)], AGENT_PORT),
        *_monitoring(context, ENGINE_PORT, AGENT_PORT),
    ]


def _router_rules(context: PoolContext) -> list[dict[str, Any]]:
    """The pool's port is open to everybody, unless the spec names namespaces."""
    namespaces = context.pool.spec.network_policy.client_namespaces
    if not namespaces:
        return [_rule([], ROUTER_PORT), *_monitoring(context, ROUTER_METRICS_PORT)]
    clients = [*map(_namespace, namespaces), _operator(context)]
    return [_rule(clients, ROUTER_PORT), *_monitoring(context, ROUTER_METRICS_PORT)]


def _directory_rules(context: PoolContext) -> list[dict[str, Any]]:
    return [_rule([_own(context, "engine"), _routers(context)], DIRECTORY_PORT)]


def _monitoring(context: PoolContext, *ports: int) -> list[dict[str, Any]]:
    spec = context.pool.spec.network_policy
    namespaces = sorted({*spec.monitoring_namespaces, *context.config.monitoring})
    return [_rule([*map(_namespace, namespaces)], *ports)] if namespaces else []


def _rule(peers: list[dict[str, Any]], *ports: int) -> dict[str, Any]:
    allowed = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {"from": peers, **allowed} if peers else allowed


def _own(context: PoolContext, component: Component) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": context.selector(component)}}


def _routers(context: PoolContext) -> dict[str, Any]:
    """The pool's own routers, or its gateway's."""
    return {"podSelector": {"matchLabels": context.router_selector}}


def _operator(context: PoolContext) -> dict[str, Any]:
    return _namespace(context.config.namespace)


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def build_ingress(context: PoolContext, ingress: IngressSpec) -> Child:
    """An Ingress to the router's Service."""
    backend = {"service": {"name": context.name("router"), "port": {"name": "http"}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: dict[str, Any] = {"rules": [{"host": ingress.host, "http": {"paths": [path]}}]}
    if ingress.class_name is not None:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret_ref is not None:
        spec["tls"] = [{"hosts": [ingress.host], "secretName": ingress.tls_secret_ref.name}]
    return context.child("networking.k8s.io/v1", "Ingress", "router", {"spec": spec}, dict(ingress.annotations))


def build_http_route(context: PoolContext, route: HTTPRouteSpec) -> Child:
    """An HTTPRoute to the router's Service."""
    parents = [one.model_dump(exclude_none=True, by_alias=True) for one in route.parent_refs]
    backend = {"name": context.name("router"), "port": context.pool.spec.router.service.port}
    spec: dict[str, Any] = {"parentRefs": parents, "rules": [{"backendRefs": [backend]}]}
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return context.child("gateway.networking.k8s.io/v1", "HTTPRoute", "router", {"spec": spec})


# The chart's alerts and dashboard group by these labels.
_RELABELINGS: Final = [
    {"sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', label)}"], "targetLabel": name}
    for label, name in ((POOL_LABEL, "pool"), (COMPONENT_LABEL, "component"))
]


def build_monitor(context: PoolContext, component: Component) -> Child:
    """A PodMonitor of one component's pods."""
    monitoring = context.pool.spec.monitoring
    ports = ("http", "agent") if component == "engine" else ("metrics",)
    endpoint = {"path": "/metrics", "interval": f"{monitoring.interval_seconds}s", "relabelings": _RELABELINGS}
    spec = {
        "selector": {"matchLabels": selector_of(context.pool.metadata.name, component)},
        "podMetricsEndpoints": [{"port": port, **endpoint} for port in ports],
    }
    return context.child("monitoring.coreos.com/v1", "PodMonitor", component, {"spec": spec}, labels=monitoring.labels)
