"""What every decision needs to know of the operator's own installation: images, names, switches. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from plumage_operator.permissions import ROUTER_ROLE

__all__ = ["OperatorConfig"]


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """The operator's installation.

    image: of routers, agents, directories and simulators.
    engine_image: vLLM with Plumage's plugin.
    namespace, service_account: the operator's own.
    monitoring: namespaces that may scrape metrics in spite of the NetworkPolicies.
    """

    image: str
    engine_image: str
    namespace: str = "plumage-system"
    service_account: str = "plumage-operator"
    router_role: str = ROUTER_ROLE
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True
    monitoring: tuple[str, ...] = ()
