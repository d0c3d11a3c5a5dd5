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
    pool_of,
    selector_of,
)
from plumage.errors import ManifestError
from plumage.settings.router_config import SharedModelConfig
from plumage_operator.config import OperatorConfig
from plumage_operator.observed import Object, Observed, component_pods, digest, meta, own_child, status_of

__all__ = [
    "APPLIED",
    "CONFIG_HASH",
    "SERVES_TLS",
    "Child",
    "ChildOwner",
    "ExternalEngines",
    "GatewayContext",
    "PoolContext",
    "ServedPool",
    "cordoned_replicas",
    "deployed_replicas",
    "external_mistake",
    "is_deleting",
    "is_paused",
    "model_mistakes",
    "read_pool",
    "read_pool_context",
    "scaled_by_hand",
    "wanted_replicas",
]

Child = dict[str, Any]

CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""Annotation of a pod template: a change restarts the pods."""

APPLIED: Final = f"{GROUP}/applied"
"""Annotation of each child: a hash of all that was applied, so that fields that are no longer written are noticed."""

SERVES_TLS: Final = f"{GROUP}/serves-tls"
"""Annotation of a router's pod whose port has TLS: during a rollout its pods differ."""


class ChildOwner(ABC):
    """The owner of children: a pool or a gateway, with the operator's configuration."""

    __slots__ = ()
    kind: ClassVar[str]
    config: OperatorConfig

    @property
    @abstractmethod
    def metadata(self) -> ObjectMeta:
        """The owner's name, namespace and uid."""

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    def name(self, component: Component) -> str:
        """The name of a component's children."""
        return child_name(self.metadata.name, component)

    @abstractmethod
    def labels(self, component: Component) -> dict[str, str]:
        """All labels of a component's objects."""

    @abstractmethod
    def selector(self, component: Component) -> dict[str, str]:
        """The labels that select a component's pods."""

    def child(
        self,
        api_version: str,
        kind: str,
        component: Component,
        body: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Child:
        """A child with owner reference, labels and hash. labels: further ones; the operator's own win. name: where it
        is not the component's.
        """
        metadata: dict[str, Any] = {
            "name": self.name(component) if name is None else name,
            "namespace": self.namespace,
            "labels": {**(labels or {}), **self.labels(component)},
            "ownerReferences": [self._owner()],
        }
        child: Child = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
        metadata["annotations"] = {**(annotations or {}), APPLIED: digest({**child, "annotations": annotations or {}})}
        return child

    def _owner(self) -> dict[str, Any]:
        # blockOwnerDeletion would need a right on inferencepools/finalizers, and nothing waits for the deletion.
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
class ExternalEngines:
    """The pods of engines that somebody else deploys. labels: select them. port: of each engine."""

    labels: Mapping[str, str]
    port: int


@dataclass(frozen=True, slots=True)
class PoolContext(ChildOwner):
    """A pool, the operator's configuration, and the number of replicas that the pool should have now.

    external: the engines of a pool that has external ones, where they are known.
    volume_suffix: separates the pool's volumes from those of other pools in a gateway's pod; empty in the pool's own
    pods.
    """

    kind: ClassVar[str] = "InferencePool"

    pool: InferencePool
    config: OperatorConfig
    replicas: int
    volume_suffix: str = ""
    external: ExternalEngines | None = None

    @property
    def metadata(self) -> ObjectMeta:
        return self.pool.metadata

    def labels(self, component: Component) -> dict[str, str]:
        return labels_of(self.metadata.name, component)

    def selector(self, component: Component) -> dict[str, str]:
        return selector_of(self.metadata.name, component)

    @property
    def router_selector(self) -> dict[str, str]:
        """The labels of the pods that route to its engines: its own routers, or its gateway's."""
        reference = self.pool.spec.router.gateway_ref
        return self.selector("router") if reference is None else gateway_selector_of(reference.name)


@dataclass(frozen=True, slots=True)
class ServedPool:
    """A pool that a gateway serves, the model names that requests to it may have, and its replicas that people
    cordoned."""

    context: PoolContext
    names: tuple[str, ...]
    cordoned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayContext(ChildOwner):
    """A gateway, the operator's configuration, and the pools that the gateway serves. shared: the names that lead to
    several pools, or to another model, or whose requests are copied."""

    kind: ClassVar[str] = "InferenceGateway"

    gateway: InferenceGateway
    config: OperatorConfig
    served: tuple[ServedPool, ...] = ()
    shared: tuple[SharedModelConfig, ...] = ()

    @property
    def metadata(self) -> ObjectMeta:
        return self.gateway.metadata

    def labels(self, component: Component) -> dict[str, str]:
        return gateway_labels_of(self.metadata.name)

    def selector(self, component: Component) -> dict[str, str]:
        return gateway_selector_of(self.metadata.name)


def deployed_replicas(observed: Observed, pool: InferencePool) -> int | None:
    """`spec.replicas` of the engines' Deployment; None where the pool has none yet."""
    deployment = own_child(observed, ("Deployment", child_name(pool.metadata.name, "engine")))
    return None if deployment is None else int((deployment.get("spec") or {}).get("replicas", 1))


def read_pool_context(observed: Observed, config: OperatorConfig) -> tuple[PoolContext | None, list[str]]:
    """The context of a pool, and what is wrong with its spec; no context where the spec can't be parsed."""
    try:
        pool = read_pool(observed.pool)
    except ManifestError as error:
        return None, list(error.mistakes)
    context = PoolContext(pool, config, wanted_replicas(observed, pool), external=_external_engines(observed, pool))
    return context, model_mistakes(context)


def _external_engines(observed: Observed, pool: InferencePool) -> ExternalEngines | None:
    """By the InferencePool of the Gateway API. Where that is missing or can't be used, the pods of before stay: stale
    members are better than none.
    """
    if pool.spec.engine.external is None:
        return None
    if observed.external is not None and external_mistake(observed.external) is None:
        spec = observed.external["spec"]
        return ExternalEngines(spec["selector"]["matchLabels"], int(spec["targetPorts"][0]["number"]))
    service = own_child(observed, ("Service", child_name(pool.metadata.name, "engine")))
    spec = {} if service is None else service.get("spec") or {}
    labels, ports = spec.get("selector") or {}, list(spec.get("ports") or [])
    if pool_of(labels) == pool.metadata.name or not labels or len(ports) != 1:
        return None  # of engines of its own, which it had before
    return ExternalEngines(labels, int(ports[0]["targetPort"]))


def external_mistake(published: Object) -> str | None:
    """Why an InferencePool of the Gateway API can't name engines; None if it can."""
    spec = published.get("spec") or {}
    ports = [one.get("number") for one in spec.get("targetPorts") or ()]
    if len(ports) != 1:
        return f"it has {len(ports)} target ports, and routers send to one port of a pod"
    if (protocol := spec.get("appProtocol") or "http") != "http":
        return f"its appProtocol is {protocol}, and routers speak HTTP/1.1"
    return None


def is_deleting(pool: Object) -> bool:
    """Whether the object is being deleted."""
    return "deletionTimestamp" in meta(pool)


def read_pool(pool: Object) -> InferencePool:
    """Parses a pool. The status is the operator's own and not parsed.

    Fields of a newer schema are ignored. Raises ManifestError where the spec breaks a rule that an older schema
    accepted.
    """
    read = parse_kept({key: value for key, value in pool.items() if key != "status"}, "the pool")
    assert isinstance(read, InferencePool), "the watch is for pools"
    return read


def is_paused(pool: Object) -> bool:
    """Whether people asked that nothing be changed."""
    return (meta(pool).get("annotations") or {}).get(PAUSE) == "true"


def wanted_replicas(observed: Observed, pool: InferencePool) -> int:
    """The number of replicas that the pool should have now.

    With autoscaling, the last decision holds until the autoscaler decides again. The Deployment has it, because it is
    written before the status: an operator that died between the two would otherwise undo the decision. A paused pool
    keeps its size, and its status shows that size.
    """
    if pool.spec.engine.external is not None:
        return 0
    live = deployed_replicas(observed, pool)
    if is_paused(observed.pool) and live is not None:
        return live
    if pool.spec.autoscaling is None:
        return pool.spec.initial_replicas
    if observed.scaling is not None:
        return observed.scaling.desired
    written, bounds = status_of(observed.pool).get("desiredReplicas"), pool.spec.autoscaling
    last = written if live is None else live
    if last is None:
        return pool.spec.initial_replicas
    return max(bounds.min_replicas, min(bounds.max_replicas, int(last)))


def scaled_by_hand(pool: InferencePool) -> str:
    """Who chooses the number of replicas of a pool without autoscaling."""
    if pool.spec.engine.external is not None:
        return "the engines are external: their owner chooses how many there are"
    return "spec.autoscaling is not set: spec.replicas applies"


def cordoned_replicas(pods: Iterable[Object]) -> Sequence[str]:
    """Names of the engine pods that people cordoned by annotation."""
    engines = component_pods(pods, "engine")
    return [str(meta(pod)["name"]) for pod in engines if (meta(pod).get("annotations") or {}).get(CORDON) == "true"]


def model_mistakes(context: PoolContext) -> list[str]:
    """What is wrong with `spec.model`, with the field's name."""
    model = context.pool.spec.model
    tokenizer = model.tokenizer or model.uri
    if tokenizer.startswith("s3://"):
        return ["spec.model.tokenizer: must be set with an s3:// model, to hf://, pvc://, oci:// or file://"]
    return []
