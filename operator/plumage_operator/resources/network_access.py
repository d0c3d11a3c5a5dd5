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
from plumage_operator.resources.context import Child, GatewayScene, Owner, Scene

__all__ = ["build_gateway_policy", "build_http_route", "build_ingress", "build_monitor", "build_network_policy"]


def build_network_policy(scene: Scene, component: Component) -> Child:
    """What may come in; going out is left open, since models are fetched from anywhere."""
    rules = {"engine": _engine_rules, "router": _router_rules, "directory": _directory_rules}[component]
    return _policy(scene, component, rules(scene))


def build_gateway_policy(scene: GatewayScene) -> Child:
    """The gateway's door is everybody's: its spec names no namespaces."""
    scrapers = [_rule([*map(_namespace, sorted(set(scene.site.monitoring)))], ROUTER_METRICS_PORT)]
    return _policy(scene, "gateway", [_rule([], ROUTER_PORT), *(scrapers if scene.site.monitoring else ())])


def _policy(owner: Owner, component: Component, ingress: list[dict[str, Any]]) -> Child:
    spec = {
        "podSelector": {"matchLabels": owner.selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return owner.child("networking.k8s.io/v1", "NetworkPolicy", component, {"spec": spec})


def _engine_rules(scene: Scene) -> list[dict[str, Any]]:
    return [
        _rule([_routers(scene)], ENGINE_PORT),
        _rule([_own(scene, "engine"), _operator(scene)], AGENT_PORT),
        *_monitoring(scene, ENGINE_PORT, AGENT_PORT),
    ]


def _router_rules(scene: Scene) -> list[dict[str, Any]]:
    """The pool's door: everybody's, unless namespaces are named."""
    namespaces = scene.pool.spec.network_policy.client_namespaces
    if not namespaces:
        return [_rule([], ROUTER_PORT), *_monitoring(scene, ROUTER_METRICS_PORT)]
    clients = [*map(_namespace, namespaces), _operator(scene)]
    return [_rule(clients, ROUTER_PORT), *_monitoring(scene, ROUTER_METRICS_PORT)]


def _directory_rules(scene: Scene) -> list[dict[str, Any]]:
    return [_rule([_own(scene, "engine"), _routers(scene)], DIRECTORY_PORT)]


def _monitoring(scene: Scene, *ports: int) -> list[dict[str, Any]]:
    told = (*scene.pool.spec.network_policy.monitoring_namespaces, *scene.site.monitoring)
    namespaces = sorted(set(told))
    return [_rule([*map(_namespace, namespaces)], *ports)] if namespaces else []


def _rule(peers: list[dict[str, Any]], *ports: int) -> dict[str, Any]:
    allowed = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {"from": peers, **allowed} if peers else allowed


def _own(scene: Scene, component: Component) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": scene.selector(component)}}


def _routers(scene: Scene) -> dict[str, Any]:
    """The pool's own, or its gateway's."""
    return {"podSelector": {"matchLabels": scene.router_selector}}


def _operator(scene: Scene) -> dict[str, Any]:
    return _namespace(scene.site.namespace)


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def build_ingress(scene: Scene, asked: IngressSpec) -> Child:
    """To the router's Service."""
    backend = {"service": {"name": scene.name("router"), "port": {"name": "http"}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: dict[str, Any] = {"rules": [{"host": asked.host, "http": {"paths": [path]}}]}
    if asked.class_name is not None:
        spec["ingressClassName"] = asked.class_name
    if asked.tls_secret_ref is not None:
        spec["tls"] = [{"hosts": [asked.host], "secretName": asked.tls_secret_ref.name}]
    return scene.child("networking.k8s.io/v1", "Ingress", "router", {"spec": spec}, dict(asked.annotations))


def build_http_route(scene: Scene, asked: HTTPRouteSpec) -> Child:
    """To the router's Service."""
    parents = [one.model_dump(exclude_none=True, by_alias=True) for one in asked.parent_refs]
    backend = {"name": scene.name("router"), "port": scene.pool.spec.router.service.port}
    spec: dict[str, Any] = {"parentRefs": parents, "rules": [{"backendRefs": [backend]}]}
    if asked.hostnames:
        spec["hostnames"] = list(asked.hostnames)
    return scene.child("gateway.networking.k8s.io/v1", "HTTPRoute", "router", {"spec": spec})


# The chart's alerts and dashboard group by these.
_RELABELINGS: Final = [
    {"sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', label)}"], "targetLabel": name}
    for label, name in ((POOL_LABEL, "pool"), (COMPONENT_LABEL, "component"))
]


def build_monitor(scene: Scene, component: Component) -> Child:
    """Metrics of one part's pods."""
    asked = scene.pool.spec.monitoring
    ports = ("http", "agent") if component == "engine" else ("metrics",)
    endpoint = {"path": "/metrics", "interval": f"{asked.interval_seconds}s", "relabelings": _RELABELINGS}
    spec = {
        "selector": {"matchLabels": selector_of(scene.pool.metadata.name, component)},
        "podMetricsEndpoints": [{"port": port, **endpoint} for port in ports],
    }
    return scene.child("monitoring.coreos.com/v1", "PodMonitor", component, {"spec": spec}, labels=asked.labels)
