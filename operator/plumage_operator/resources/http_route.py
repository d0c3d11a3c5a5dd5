"""The HTTPRoute of a pool, for the Gateway API. Pure."""

from __future__ import annotations

from typing import Any

from plumage.api.v1alpha1.exposure import HTTPRouteSpec
from plumage_operator.resources.context import Child, PoolContext

__all__ = ["build_http_route"]


def build_http_route(context: PoolContext, route: HTTPRouteSpec) -> Child:
    """An HTTPRoute to the router's Service."""
    parents = [one.model_dump(exclude_none=True, by_alias=True) for one in route.parent_refs]
    backend = {"name": context.name("router"), "port": context.pool.spec.router.service.port}
    spec: dict[str, Any] = {"parentRefs": parents, "rules": [{"backendRefs": [backend]}]}
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return context.child("gateway.networking.k8s.io/v1", "HTTPRoute", "router", {"spec": spec})
