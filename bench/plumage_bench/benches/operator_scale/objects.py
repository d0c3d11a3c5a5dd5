"""The objects to apply: pools, and the same Deployments for a cluster without an operator. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from plumage.api.v1alpha1 import API_VERSION, parse_pool
from plumage_operator.config import OperatorConfig
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.status.conditions import Reason, Type

__all__ = ["NAMESPACES", "PODS_A_POOL", "children", "deployments", "is_complete", "is_settled", "namespace_of", "pool"]

ENGINES: Final = 7
ROUTERS: Final = 2
PODS_A_POOL: Final = ENGINES + ROUTERS + 1  # and the directory
NAMESPACES: Final = tuple(f"team-{number:02d}" for number in range(20))
_SITE: Final = OperatorConfig(image="plumage:1", engine_image="engine:1")
_TRUE: Final = (Type.ACCEPTED, Type.ENGINE_READY, Type.ROUTER_READY, Type.DIRECTORY_READY, Type.READY)


def namespace_of(number: int) -> str:
    """Pools are spread over a few namespaces, as those of teams."""
    return NAMESPACES[number % len(NAMESPACES)]


def pool(number: int) -> dict[str, Any]:
    """A pool of `PODS_A_POOL` pods."""
    return {
        "apiVersion": API_VERSION,
        "kind": "InferencePool",
        "metadata": {"name": f"pool-{number:04d}", "namespace": namespace_of(number)},
        "spec": {
            "model": {"uri": "builtin://tiny-chat"},
            "engine": {"runtime": "Simulator"},
            "replicas": ENGINES,
            "router": {"replicas": ROUTERS},
        },
    }


def children(number: int) -> Iterator[dict[str, Any]]:
    """The objects that the operator makes for that pool, without an owner."""
    manifest = pool(number)
    named = {**manifest, "metadata": {**manifest["metadata"], "uid": "none"}}
    for child in build_children(PoolContext(parse_pool(named, "the pool"), _SITE, ENGINES)):
        child["metadata"].pop("ownerReferences")
        yield child


def deployments(number: int) -> Iterator[dict[str, Any]]:
    """The Deployments among them. Their pods' service accounts belong to the pool, so these use the namespace's own."""
    for child in children(number):
        if child["kind"] == "Deployment":
            child["spec"]["template"]["spec"]["serviceAccountName"] = "default"
            yield child


def is_settled(thing: Mapping[str, Any]) -> bool:
    """Whether all conditions of a pool show that it is as in its spec."""
    status = thing.get("status") or {}
    said = {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions") or ()}
    return (
        status.get("observedGeneration") == thing["metadata"]["generation"]
        and all(said.get(type_, ("", ""))[0] == "True" for type_ in _TRUE)
        and said.get(Type.PROGRESSING) == ("False", Reason.SETTLED)
    )


def is_complete(thing: Mapping[str, Any]) -> bool:
    """Whether all pods of a Deployment exist and are ready."""
    status, wanted = thing.get("status") or {}, thing["spec"]["replicas"]
    counted = (status.get(name) for name in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"))
    return status.get("observedGeneration") == thing["metadata"]["generation"] and set(counted) == {wanted}
