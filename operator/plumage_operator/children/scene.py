"""What every child of a pool or a gateway is built from, and what all of them carry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from plumage.api.v1alpha1 import API_VERSION, InferenceGateway, InferencePool
from plumage.api.v1alpha1.metadata import ObjectMeta
from plumage.cluster import (
    GROUP,
    Component,
    child_name,
    gateway_labels_of,
    gateway_selector_of,
    labels_of,
    selector_of,
)
from plumage_operator.hashing import digest
from plumage_operator.site import Site

__all__ = ["APPLIED", "CONFIG_HASH", "Child", "GatewayScene", "Owner", "Scene", "Served"]

Child = dict[str, Any]
CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""On a pod template: what restarts its pods when it changes."""
APPLIED: Final = f"{GROUP}/applied"
"""On each child: a hash of all that was applied, so that a field we no longer write is noticed too."""


class Owner(ABC):
    """Whoever has children: a pool or a gateway, and the place it is built in."""

    __slots__ = ()
    kind: ClassVar[str]
    site: Site

    @property
    @abstractmethod
    def metadata(self) -> ObjectMeta:
        """The name and place of whoever it is."""

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    def name(self, component: Component) -> str:
        """What the children of one part are called."""
        return child_name(self.metadata.name, component)

    @abstractmethod
    def labels(self, component: Component) -> dict[str, str]:
        """All labels of one part's objects."""

    @abstractmethod
    def selector(self, component: Component) -> dict[str, str]:
        """Those of them that choose its pods."""

    def child(
        self,
        api_version: str,
        kind: str,
        component: Component,
        body: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Child:
        """An object of its own: owned by it, labelled, and hashed. labels: others beside ours, which win."""
        metadata: dict[str, Any] = {
            "name": self.name(component),
            "namespace": self.namespace,
            "labels": {**(labels or {}), **self.labels(component)},
            "ownerReferences": [self._owner()],
        }
        child: Child = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
        metadata["annotations"] = {**(annotations or {}), APPLIED: digest({**child, "annotations": annotations or {}})}
        return child

    def _owner(self) -> dict[str, Any]:
        # blockOwnerDeletion would need a verb on inferencepools/finalizers, for nothing that anybody waits for.
        meta = self.metadata
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": meta.name,
            "uid": meta.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }


@dataclass(frozen=True, slots=True)
class Scene(Owner):
    """A pool, the place it is built in, and how many replicas it should have now. mark: what its volumes are told by
    from those of other pools in one pod; empty in its own pods."""

    kind: ClassVar[str] = "InferencePool"

    pool: InferencePool
    site: Site
    replicas: int
    mark: str = ""

    @property
    def metadata(self) -> ObjectMeta:
        return self.pool.metadata

    def labels(self, component: Component) -> dict[str, str]:
        return labels_of(self.metadata.name, component)

    def selector(self, component: Component) -> dict[str, str]:
        return selector_of(self.metadata.name, component)

    @property
    def router_selector(self) -> dict[str, str]:
        """The labels of the pods that route to its engines: of its own routers, or its gateway's."""
        reference = self.pool.spec.router.gateway_ref
        return self.selector("router") if reference is None else gateway_selector_of(reference.name)


@dataclass(frozen=True, slots=True)
class Served:
    """A pool that a gateway serves, by which names, and its replicas that people cordoned."""

    scene: Scene
    names: tuple[str, ...]
    cordoned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayScene(Owner):
    """A gateway, the place it is built in, and the pools that it serves."""

    kind: ClassVar[str] = "InferenceGateway"

    gateway: InferenceGateway
    site: Site
    served: tuple[Served, ...] = ()

    @property
    def metadata(self) -> ObjectMeta:
        return self.gateway.metadata

    def labels(self, component: Component) -> dict[str, str]:
        return gateway_labels_of(self.metadata.name)

    def selector(self, component: Component) -> dict[str, str]:
        return gateway_selector_of(self.metadata.name)
