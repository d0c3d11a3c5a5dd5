"""The InferencePool of the Gateway API Inference Extension, by which gateways find a pool's engines and picker. Pure.

Fields: config/crd/bases/inference.networking.k8s.io_inferencepools.yaml, version v1, of
kubernetes-sigs/gateway-api-inference-extension. What is written here is valid from its v1.0.0 to v1.6.0.
"""

from __future__ import annotations

from typing import Any

from plumage.api.v1alpha1.exposure import EndpointPickerSpec, PublishedPoolSpec
from plumage.cluster import ENGINE_PORT, picker_service
from plumage_operator.kinds import KINDS, PUBLISHED_POOL
from plumage_operator.resources.context import Child, PoolContext

__all__ = ["build_published_pool"]


def build_published_pool(context: PoolContext, picker: EndpointPickerSpec, published: PublishedPoolSpec) -> Child:
    """Builds the published pool. It has the pool's own name, which routes name as their backend.

    The selector also matches pods that are not ready: gateways send requests only where the picker says. Group and kind
    are the definition's defaults. They are written, so that nobody leads gateways to another picker by changing them.
    """
    spec: dict[str, Any] = {
        "selector": {"matchLabels": context.selector("engine")},
        "targetPorts": [{"number": ENGINE_PORT}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": picker_service(context.pool.metadata.name),
            "port": {"number": picker.port},
            "failureMode": published.failure_mode,
        },
    }
    name = context.metadata.name
    return context.child(KINDS[PUBLISHED_POOL][0], "InferencePool", "router", {"spec": spec}, name=name)
