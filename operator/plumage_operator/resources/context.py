"""What every child of a pool or gateway is built from, and how that is read from the manifest. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from plumage.api.v1alpha1 import API_VERSION, InferenceGateway, InferencePool, parse_kept
from plumage.api.v1alpha1.metadata import ObjectMeta
from plumage.cluster import (
    CORDON,
    GROUP,
    PAUSE,
    Component,
    child_name,
    gateway_labels_of,
    gateway_selector_of,
    labels_of,
    selector_of,
)
from plumage.errors import ManifestError
from plumage_operator.config import OperatorConfig
from plumage_operator.observed import Object, Observed, component_pods, digest, meta, own_child, status_of

__all__ = [
    "APPLIED",
    "CONFIG_HASH",
    "Child",
    "ChildOwner",
    "GatewayContext",
    "PoolContext",
    "ServedPool",
    "cordoned_replicas",
    "is_deleting",
    "is_paused",
    "model_mistakes",
    "read_pool",
    "read_pool_context",
    "wanted_replicas",
]

Child = dict[str, Any]

CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""On a pod template: what restarts its pods when it changes."""

APPLIED: Final = f"{GROUP}/applied"
"""On each child: a hash of all that was applied, so that a field we no longer write is noticed too."""


class ChildOwner(ABC):
    """Whoever has children: a pool or a gateway, and the place it is built in."""

    __slots__ = ()
    kind: ClassVar[str]
    config: OperatorConfig

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
class PoolContext(ChildOwner):
    """A pool, the place it is built in, and how many replicas it should have now. mark: what its volumes are told by
    from those of other pools in one pod; empty in its own pods."""

    kind: ClassVar[str] = "InferencePool"

    pool: InferencePool
    config: OperatorConfig
    replicas: int
    volume_suffix: str = ""

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
class ServedPool:
    """A pool that a gateway serves, by which names, and its replicas that people cordoned."""

    context: PoolContext
    names: tuple[str, ...]
    cordoned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayContext(ChildOwner):
    """A gateway, the place it is built in, and the pools that it serves."""

    kind: ClassVar[str] = "InferenceGateway"

    gateway: InferenceGateway
    config: OperatorConfig
    served: tuple[ServedPool, ...] = ()

    @property
    def metadata(self) -> ObjectMeta:
        return self.gateway.metadata

    def labels(self, component: Component) -> dict[str, str]:
        return gateway_labels_of(self.metadata.name)

    def selector(self, component: Component) -> dict[str, str]:
        return gateway_selector_of(self.metadata.name)


def read_pool_context(observed: Observed, config: OperatorConfig) -> tuple[PoolContext | None, list[str]]:
    """The scene, and what is wrong with the spec."""
    try:
        pool = read_pool(observed.pool)
    except ManifestError as error:
        return None, list(error.mistakes)
    context = PoolContext(pool, config, wanted_replicas(observed, pool))
    return context, model_mistakes(context)


def is_deleting(pool: Object) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in meta(pool)


def read_pool(pool: Object) -> InferencePool:
    """ManifestError where the spec breaks a rule that an older schema let pass. Fields of a newer one are passed over.
    The status is ours and not read."""
    read = parse_kept({key: value for key, value in pool.items() if key != "status"}, "the pool")
    assert isinstance(read, InferencePool), "the watch is for pools"
    return read


def is_paused(pool: Object) -> bool:
    """Whether people asked that nothing be changed."""
    return (meta(pool).get("annotations") or {}).get(PAUSE) == "true"


def wanted_replicas(observed: Observed, pool: InferencePool) -> int:
    """With autoscaling what was decided last holds until the autoscaler decides anew. It is in the Deployment, which is
    written before the status: an operator that died between the two would else undo the decision, and replicas that
    went or came for it. A paused pool keeps the size that it has: it is as it should be, and what it will be is not
    told as if it were so."""
    deployment = own_child(observed, ("Deployment", child_name(pool.metadata.name, "engine")))
    live = None if deployment is None else int((deployment.get("spec") or {}).get("replicas", 1))
    if is_paused(observed.pool) and live is not None:
        return live
    if pool.spec.autoscaling is None:
        return pool.spec.initial_replicas
    if observed.scaling is not None:
        return observed.scaling.desired
    told, bounds = status_of(observed.pool).get("desiredReplicas"), pool.spec.autoscaling
    last = told if live is None else live
    if last is None:
        return pool.spec.initial_replicas
    return max(bounds.min_replicas, min(bounds.max_replicas, int(last)))


def cordoned_replicas(pods: Iterable[Object]) -> Sequence[str]:
    """The replicas among them that people annotated."""
    engines = component_pods(pods, "engine")
    return [str(meta(pod)["name"]) for pod in engines if (meta(pod).get("annotations") or {}).get(CORDON) == "true"]


def model_mistakes(context: PoolContext) -> list[str]:
    """What can't be found anywhere, in words that name the field."""
    model = context.pool.spec.model
    tokenizer = model.tokenizer or model.uri
    if tokenizer.startswith("s3://"):
        return ["spec.model.tokenizer: must be set with an s3:// model, to hf://, pvc://, oci:// or file://"]
    return []
