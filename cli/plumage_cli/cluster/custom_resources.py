"""The InferencePools and InferenceGateways of a cluster. Unknown fields of a newer operator are ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from plumage.api_server import ApiServerError
from plumage.cluster import GROUP, PAUSE, POOL_LABEL, VERSION
from plumage_cli.cluster.client import Cluster
from plumage_cli.errors import CliError, NoPoolError

__all__ = [
    "FAULTS",
    "condition",
    "find_gateway",
    "gateways",
    "is_paused",
    "name_of",
    "one_pool",
    "pods_of",
    "pools",
    "root_causes",
]

_NOT_HERE = (
    "the cluster does not know InferencePools: install Plumage (helm install), or its CRDs (kubectl apply -f crds/)"
)
_CAUSES_OF_READY = ("Accepted", "EngineReady", "RouterReady", "DirectoryReady")
"""Ready depends on these conditions."""
FAULTS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "Progressing": lambda one: one.get("reason") in ("RolloutHalted", "Degraded"),
    "AdaptersReady": lambda one: one.get("status") == "False",
    "Published": lambda one: one.get("status") == "False",
    "Scaling": lambda one: one.get("reason") == "MetricMissing",
}
"""What may be wrong with a pool that is ready, as in the alert PlumageNeedsAttention."""
_API = f"/apis/{GROUP}/{VERSION}"


def pools(cluster: Cluster, everywhere: bool) -> list[dict[str, Any]]:
    """The pools, sorted by namespace and name. everywhere: of all namespaces. CliError where the CRD is missing."""
    found = _listed(cluster, "inferencepools", everywhere)
    if found is None:
        raise CliError(_NOT_HERE)
    return found


def gateways(cluster: Cluster, everywhere: bool) -> list[dict[str, Any]]:
    """The gateways, sorted by namespace and name. Empty where the CRD is missing. everywhere: of all namespaces."""
    return _listed(cluster, "inferencegateways", everywhere) or []


def one_pool(cluster: Cluster, name: str) -> dict[str, Any]:
    """The pool `name` of the namespace. NoPoolError, with the existing pools, where there is none."""
    found = _found(cluster, "inferencepools", name)
    if found is None:
        names = ", ".join(pool["metadata"]["name"] for pool in pools(cluster, False)) or "none"
        raise NoPoolError(f"there is no pool {name} in namespace {cluster.namespace} of {cluster.name}; pools: {names}")
    return found


def find_gateway(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """The gateway `name` of the namespace, or None."""
    return _found(cluster, "inferencegateways", name)


def pods_of(cluster: Cluster, thing: Mapping[str, Any], label: str = POOL_LABEL) -> list[dict[str, Any]]:
    """The pods of all components of a pool. label: another label, for the pods of a gateway."""
    meta = thing["metadata"]
    path = f"/api/v1/namespaces/{quote(meta['namespace'])}/pods"
    found: list[dict[str, Any]] = cluster.get(path, {"labelSelector": f"{label}={meta['name']}"})["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def name_of(thing: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def is_paused(pool: Mapping[str, Any]) -> bool:
    """Whether its annotation pauses the operator."""
    return str((pool["metadata"].get("annotations") or {}).get(PAUSE, "")).lower() == "true"


def condition(pool: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition of type `kind`, or None."""
    conditions = (pool.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), None)


def root_causes(pool: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The conditions that need action, first those that keep the pool from being ready.

    Ready itself only where none of the conditions behind it is False. It is Degraded while a replica is missing.
    """
    found = [one for kind in _CAUSES_OF_READY if (one := condition(pool, kind)) and one.get("status") == "False"]
    faults = [one for kind, wrong in FAULTS.items() if (one := condition(pool, kind)) and wrong(one)]
    ready = condition(pool, "Ready") or {"status": "True"}
    if not found and (ready["status"] != "True" or (ready.get("reason") == "Degraded" and not faults)):
        yield ready
    yield from (*found, *faults)


def _listed(cluster: Cluster, plural: str, everywhere: bool) -> list[dict[str, Any]] | None:
    """The objects of a CRD, sorted by namespace and name; None where the cluster does not know it."""
    place = "" if everywhere else f"/namespaces/{quote(cluster.namespace)}"
    try:
        found = cluster.get(f"{_API}{place}/{plural}")["items"]
    except ApiServerError as error:
        if error.status == 404:
            return None
        raise
    return sorted(found, key=name_of)


def _found(cluster: Cluster, plural: str, name: str) -> dict[str, Any] | None:
    """The object `name` of the namespace, or None."""
    path = f"{_API}/namespaces/{quote(cluster.namespace)}/{plural}/{quote(name, safe='')}"
    found: dict[str, Any] | None = cluster.find(path)
    return found
