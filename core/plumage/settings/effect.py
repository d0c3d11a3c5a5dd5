"""What a manifest asks for in vain, in words for whoever wrote it: `plumage validate` and `up` say it, and the operator
in the condition Accepted. It is not refused, since what asks for it may be stored already and serves."""

from __future__ import annotations

from collections.abc import Iterator

from plumage.api.v1alpha1 import InferencePool

__all__ = ["without_effect"]


def without_effect(pool: InferencePool) -> tuple[str, ...]:
    """One sentence each, beginning with the field's path."""
    return tuple(_client_namespaces(pool))


def _client_namespaces(pool: InferencePool) -> Iterator[str]:
    """Who believes a door to be shut must hear that it is open."""
    gateway = pool.spec.router.gateway_ref
    if gateway is not None and pool.spec.network_policy.client_namespaces:
        yield (
            "spec.networkPolicy.clientNamespaces has no effect behind a gateway: whoever reaches the routers of "
            f"{gateway.name} reaches this pool. Ask for keys there (spec.auth of the gateway), or give the pool a "
            "router of its own"
        )
