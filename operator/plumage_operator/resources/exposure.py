"""The ways into a pool from outside of the cluster: its Ingress, and its HTTPRoute for the Gateway API. Pure."""

from __future__ import annotations

from typing import Any

from plumage.api.v1alpha1.exposure import HTTPRouteSpec, IngressSpec
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.router import port_name

__all__ = ["build_http_route", "build_ingress"]


def build_ingress(context: PoolContext, ingress: IngressSpec) -> Child:
    """Builds the Ingress to the router's Service."""
    backend = {"service": {"name": context.name("router"), "port": {"name": port_name(context.pool.spec.router.tls)}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: dict[str, Any] = {"rules": [{"host": ingress.host, "http": {"paths": [path]}}]}
    if ingress.class_name is not None:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret_ref is not None:
        spec["tls"] = [{"hosts": [ingress.host], "secretName": ingress.tls_secret_ref.name}]
    return context.child("networking.k8s.io/v1", "Ingress", "router", {"spec": spec}, dict(ingress.annotations))


def build_http_route(context: PoolContext, route: HTTPRouteSpec) -> Child:
    """Builds the HTTPRoute to the router's Service."""
    parents = [one.model_dump(exclude_none=True, by_alias=True) for one in route.parent_refs]
    backend = {"name": context.name("router"), "port": context.pool.spec.router.service.port}
    spec: dict[str, Any] = {"parentRefs": parents, "rules": [{"backendRefs": [backend]}]}
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return context.child("gateway.networking.k8s.io/v1", "HTTPRoute", "router", {"spec": spec})
