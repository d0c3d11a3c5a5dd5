"""The kinds of objects that the operator makes. Pure.

`INTEGRATIONS` lists the kinds that not every cluster has. The operator makes them only where a pool asks for them, and
only with the right that a switch of the chart gives. The watches, the messages of refusals, `plumage doctor` and the
chart's roles all follow this list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plumage.cluster import GROUP, OURS_SELECTOR

__all__ = ["INTEGRATIONS", "KINDS", "MADE_ONCE", "PUBLISHED_POOL", "Integration", "label_selector"]

PUBLISHED_POOL: Final = "InferencePool.inference.networking.k8s.io"
"""The kind of the Gateway API Inference Extension, as `observed.key_of` names it: Plumage's own has that name too."""


@dataclass(frozen=True, slots=True)
class Integration:
    """A kind that not every cluster has.

    switch: the chart's value under `integrations` that gives the right.
    kind: as `observed.key_of` names it.
    field: the field of a pool's spec that asks for it.
    switch_field: the field whose value turns it on, if that is not `field` itself.
    """

    switch: str
    kind: str
    group: str
    version: str
    plural: str
    field: str
    switch_field: str = ""

    @property
    def remedy(self) -> str:
        """What to do when the right to create one is missing.

        An object that was made before the right was removed stays, and the operator does not see it. So it is not
        enough to remove the field: the pool would stay reachable from outside.
        """
        drop = f"Or remove spec.{self.field}, and delete the object that was made for it."
        return f"Give the operator the right: {self._upgrade}. {drop}"

    @property
    def resource(self) -> str:
        """The resource's name, with its group where Plumage has a resource of that name."""
        return f"{self.plural}.{self.group}" if "." in self.kind else self.plural

    @property
    def definition(self) -> str:
        """What to do when the cluster does not know the kind."""
        return f"Install its CRD, then restart the operator. Or remove spec.{self.field}."

    @property
    def removal(self) -> str:
        """What to do when the right to delete one is missing, and no spec asks for it any more."""
        return f"The pool no longer asks for it: delete it, or give the operator the right: {self._upgrade}."

    @property
    def _upgrade(self) -> str:
        return f"helm upgrade with integrations.{self.switch}=true"

    def requested_by(self, spec: Mapping[str, Any]) -> bool:
        """Whether a pool asks for it. spec: as the API server stores it, with its defaults."""
        found: Any = spec
        for name in (self.switch_field or self.field).split("."):
            found = (found or {}).get(name)
        return bool(found)


INTEGRATIONS: Final = (
    Integration("gatewayApi", "HTTPRoute", "gateway.networking.k8s.io", "v1", "httproutes", "router.httpRoute"),
    Integration(
        "inferenceExtension",
        PUBLISHED_POOL,
        "inference.networking.k8s.io",
        "v1",
        "inferencepools",
        "router.endpointPicker.inferencePool",
    ),
    Integration("ingress", "Ingress", "networking.k8s.io", "v1", "ingresses", "router.ingress"),
    Integration(
        "podMonitors", "PodMonitor", "monitoring.coreos.com", "v1", "podmonitors", "monitoring", "monitoring.enabled"
    ),
)

KINDS: Final = {
    "ConfigMap": ("v1", "configmaps"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Service": ("v1", "services"),
    "Deployment": ("apps/v1", "deployments"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Ingress": ("networking.k8s.io/v1", "ingresses"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    PUBLISHED_POOL: ("inference.networking.k8s.io/v1", "inferencepools"),
}
"""Every kind that a child can have, as `observed.key_of` names it: its apiVersion, and the resource's name in paths."""


def label_selector(group: str) -> str:
    """Of the objects of a kind of this group that are watched: those with the operator's label. Of Plumage's own kinds,
    and of the Gateway API's InferencePools, which name the engines of others, it is all.
    """
    return "" if group in (GROUP, "inference.networking.k8s.io") else OURS_SELECTOR


MADE_ONCE: Final = {"Secret": ("v1", "secrets")}
"""Kinds that the operator creates and never reads, changes or deletes. The garbage collector deletes them with their
owner.
"""
