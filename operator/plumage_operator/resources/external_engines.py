"""The Service of engines that somebody else deploys. Pure."""

from __future__ import annotations

from plumage.endpoint_slices import ENGINE_PORT_NAME
from plumage_operator.resources.context import Child, ExternalEngines, PoolContext

__all__ = ["build_external_service"]


def build_external_service(context: PoolContext, engines: ExternalEngines) -> Child:
    """Builds the Service. Its EndpointSlices are the membership, as those of a pool's own engines are. So routers need
    no further right."""
    port = {"name": ENGINE_PORT_NAME, "port": engines.port, "targetPort": engines.port, "protocol": "TCP"}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(engines.labels),
        "ports": [port],
    }
    return context.child("v1", "Service", "engine", {"spec": spec})
