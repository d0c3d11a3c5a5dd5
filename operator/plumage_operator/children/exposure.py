"""How a pool is reached from outside, and how it is watched: Ingress, HTTPRoute, PodMonitors, each only where asked."""

from __future__ import annotations

import re
from typing import Any, Final

from plumage.api.v1alpha1.exposure import HTTPRouteSpec, IngressSpec
from plumage.cluster import COMPONENT_LABEL, POOL_LABEL, Component, selector_of
from plumage_operator.children.scene import Child, Scene

__all__ = ["build_http_route", "build_ingress", "build_monitor"]


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
