"""What the operator was told of the cluster it works in: images, its own name, switches."""

from __future__ import annotations

from dataclasses import dataclass

from plumage_operator.permissions import ROUTER_ROLE

__all__ = ["OperatorConfig"]


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """image: of router, agent, directory and simulator. engine_image: vLLM with Plumage's plugin. namespace,
    service_account: the operator's own. monitoring: namespaces that may scrape metrics past the NetworkPolicies."""

    image: str
    engine_image: str
    namespace: str = "plumage-system"
    service_account: str = "plumage-operator"
    router_role: str = ROUTER_ROLE
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True
    monitoring: tuple[str, ...] = ()
