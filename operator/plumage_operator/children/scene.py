"""What every child of a pool is built from, and what all of them carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plumage.api.v1alpha1 import API_VERSION, InferencePool
from plumage.cluster import GROUP, Component, child_name, labels_of
from plumage_operator.hashing import digest
from plumage_operator.site import Site

__all__ = ["APPLIED", "CONFIG_HASH", "Child", "Scene"]

Child = dict[str, Any]
CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""On a pod template: what restarts its pods when it changes."""
APPLIED: Final = f"{GROUP}/applied"
"""On each child: a hash of all that was applied, so that a field we no longer write is noticed too."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A pool, the place it is built in, and how many replicas it should have now."""

    pool: InferencePool
    site: Site
    replicas: int

    @property
    def namespace(self) -> str:
        return self.pool.metadata.namespace

    def name(self, component: Component) -> str:
        """What the children of one part are called."""
        return child_name(self.pool.metadata.name, component)

    def child(
        self,
        api_version: str,
        kind: str,
        component: Component,
        body: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
    ) -> Child:
        """An object of the pool's: owned by it, labelled, and hashed."""
        metadata: dict[str, Any] = {
            "name": self.name(component),
            "namespace": self.namespace,
            "labels": labels_of(self.pool.metadata.name, component),
            "ownerReferences": [self._owner()],
        }
        child: Child = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
        metadata["annotations"] = {**(annotations or {}), APPLIED: digest({**child, "annotations": annotations or {}})}
        return child

    def _owner(self) -> dict[str, Any]:
        # blockOwnerDeletion would need a verb on inferencepools/finalizers, for nothing that anybody waits for.
        meta = self.pool.metadata
        return {
            "apiVersion": API_VERSION,
            "kind": "InferencePool",
            "name": meta.name,
            "uid": meta.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
