"""The Ingress of a pool. Pure."""

from __future__ import annotations

from typing import Any

from plumage.api.v1alpha1.exposure import IngressSpec
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.router import port_name

__all__ = ["build_ingress"]


def build_ingress(context: PoolContext, ingress: IngressSpec) -> Child:
    """An Ingress to the router's Service."""
    backend = {"service": {"name": context.name("router"), "port": {"name": port_name(context.pool.spec.router.tls)}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: dict[str, Any] = {"rules": [{"host": ingress.host, "http": {"paths": [path]}}]}
    if ingress.class_name is not None:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret_ref is not None:
        spec["tls"] = [{"hosts": [ingress.host], "secretName": ingress.tls_secret_ref.name}]
    return context.child("networking.k8s.io/v1", "Ingress", "router", {"spec": spec}, dict(ingress.annotations))
