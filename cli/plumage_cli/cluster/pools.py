"""Pools of a cluster as an API server keeps them, read leniently: a newer operator may say more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from plumage.cluster import GROUP, PAUSE, POOL_LABEL, VERSION
from plumage_cli.cluster.client import ApiError, Cluster
from plumage_cli.errors import CliError, NoPoolError

__all__ = ["condition", "is_paused", "name_of", "one_pool", "pods_of", "pools", "root_causes"]

_API = f"/apis/{GROUP}/{VERSION}"
_NOT_HERE = (
    "the cluster has no InferencePools: install Plumage (helm install), or its definitions (kubectl apply -f crds/)"
)
_RESTS_ON = ("Accepted", "EngineReady", "RouterReady", "DirectoryReady")  # what Ready does; the others describe
_BAD = ("RolloutHalted", "Degraded")  # reasons of Progressing


def pools(cluster: Cluster, everywhere: bool) -> list[dict[str, Any]]:
    """Those of the namespace, or of all; by namespace and name."""
    place = "" if everywhere else f"/namespaces/{quote(cluster.namespace)}"
    try:
        found = cluster.get(f"{_API}{place}/inferencepools")["items"]
    except ApiError as error:
        if error.status == 404:
            raise CliError(_NOT_HERE) from None
        raise
    return sorted(found, key=name_of)


def one_pool(cluster: Cluster, name: str) -> dict[str, Any]:
    """NoPoolError names those that there are."""
    path = f"{_API}/namespaces/{quote(cluster.namespace)}/inferencepools/{quote(name, safe='')}"
    found: dict[str, Any] | None = cluster.find(path)
    if found is None:
        names = ", ".join(pool["metadata"]["name"] for pool in pools(cluster, False)) or "none"
        raise NoPoolError(f"there is no pool {name} in namespace {cluster.namespace} of {cluster.name}; pools: {names}")
    return found


def pods_of(cluster: Cluster, thing: Mapping[str, Any], label: str = POOL_LABEL) -> list[dict[str, Any]]:
    """The pods of all parts of a pool, or of what else `label` names on its pods."""
    meta = thing["metadata"]
    path = f"/api/v1/namespaces/{quote(meta['namespace'])}/pods"
    found: list[dict[str, Any]] = cluster.get(path, {"labelSelector": f"{label}={meta['name']}"})["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def name_of(pool: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    return pool["metadata"]["namespace"], pool["metadata"]["name"]


def is_paused(pool: Mapping[str, Any]) -> bool:
    """Whether somebody asked the operator to leave it alone."""
    return str((pool["metadata"].get("annotations") or {}).get(PAUSE, "")).lower() == "true"


def condition(pool: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """One of its conditions."""
    conditions = (pool.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), None)


def root_causes(pool: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The conditions that somebody should do something about; Ready itself where none of those it rests on tells."""
    found = [one for kind in _RESTS_ON if (one := condition(pool, kind)) and one.get("status") == "False"]
    ready = condition(pool, "Ready")
    yield from found or ([ready] if ready and ready.get("status") != "True" else [])
    progress = condition(pool, "Progressing")
    if progress is not None and progress.get("reason") in _BAD:
        yield progress
