"""What was read before a decision: plain, frozen values, so that a plan depends on nothing else. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from plumage.cluster import COMPONENT_LABEL, Component

__all__ = [
    "AttachedPool",
    "ChildKey",
    "Object",
    "Observed",
    "ObservedGateway",
    "Refusal",
    "ScalingDecision",
    "WarningEvent",
    "component_pods",
    "condition_of",
    "digest",
    "external_of",
    "key_of",
    "meta",
    "own_child",
    "owner_uid",
    "status_of",
]

Object = Mapping[str, Any]
"""An object as the API server returns it."""

ChildKey = tuple[str, str]
"""Kind, as in `key_of`, and name, in the pool's namespace."""

_NAMESAKE: Final = ("InferencePool", "inference.networking.k8s.io")


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """A Warning event about a pod or a ReplicaSet. Some causes appear only there, such as a volume's missing Secret."""

    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action that the API server refused for this pool. `reason` is a condition reason."""

    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The autoscaler's decision on a pool: the number of replicas, and the condition `Scaling`.

    deletion_costs: of pods, by name; a ReplicaSet deletes the lowest first.
    fields: further fields of the pool's status.
    """

    desired: int
    status: str
    reason: str
    message: str
    deletion_costs: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """A pool or a gateway, and all its objects.

    pool: the object itself, also where it is a gateway.
    children, pods: all objects that carry its label.
    gateway, gateway_pods: the gateway that the pool refers to, if it exists.
    external: the InferencePool of the Gateway API that names the pool's engines, if it has external ones and it exists.
    lost_children: children that existed and were deleted.
    refused_status: the last status that the API server refused after its events were written; None if there is none.
    """

    pool: Object
    children: Mapping[ChildKey, Object]
    pods: tuple[Object, ...] = ()
    warnings: tuple[WarningEvent, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    gateway: Object | None = None
    gateway_pods: tuple[Object, ...] = ()
    external: Object | None = None
    scaling: ScalingDecision | None = None
    lost_children: frozenset[ChildKey] = frozenset()
    refused_status: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AttachedPool:
    """A pool that refers to a gateway, and the pods of that pool."""

    pool: Object
    pods: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedGateway:
    """A gateway, the pools that refer to it, and the names of all pools in its namespace."""

    own: Observed
    attached: tuple[AttachedPool, ...] = ()
    pools: frozenset[str] = frozenset()


def meta(thing: Object) -> Mapping[str, Any]:
    """The metadata of an object; empty where it has none."""
    found: Mapping[str, Any] = thing.get("metadata") or {}
    return found


def key_of(thing: Object) -> ChildKey:
    """Kind and name of an object. `InferencePool` is a pool. That of the Gateway API carries its group, as kubectl
    writes it: `InferencePool.inference.networking.k8s.io`.
    """
    kind, group = str(thing.get("kind", "")), str(thing.get("apiVersion", "")).rpartition("/")[0]
    return f"{kind}.{group}" if (kind, group) == _NAMESAKE else kind, str(meta(thing).get("name", ""))


def external_of(pool: Object) -> str | None:
    """The InferencePool of the Gateway API that names a pool's engines; None for a pool with its own."""
    external = ((pool.get("spec") or {}).get("engine") or {}).get("external") or {}
    name = (external.get("inferencePoolRef") or {}).get("name")
    return None if name is None else str(name)


def owner_uid(thing: Object) -> str:
    """The uid of the controlling owner; empty if there is none."""
    owners = meta(thing).get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def own_child(observed: Observed, key: ChildKey) -> Object | None:
    """The child of that kind and name, unless another object owns it.

    The children of a deleted pool of the same name exist until they are collected, and say nothing about this pool.
    """
    live = observed.children.get(key)
    return live if live is not None and owner_uid(live) in ("", meta(observed.pool).get("uid")) else None


def component_pods(pods: Iterable[Object], component: Component) -> list[Object]:
    """The pods of one component that are not being deleted."""
    return [
        pod
        for pod in pods
        if (meta(pod).get("labels") or {}).get(COMPONENT_LABEL) == component and "deletionTimestamp" not in meta(pod)
    ]


def status_of(pool: Object) -> Mapping[str, Any]:
    """The status of an object; empty if it has none."""
    found: Mapping[str, Any] = pool.get("status") or {}
    return found


def digest(value: object) -> str:
    """Sixteen hexadecimal characters; equal for equal JSON, in whatever order its keys are."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def condition_of(thing: Object, type_: str) -> Mapping[str, Any]:
    """The condition of that type in an object's status; empty if there is none."""
    conditions = status_of(thing).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == type_), {})
