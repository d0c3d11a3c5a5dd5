"""Gateways of a cluster as an API server keeps them, read leniently as pools are."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from plumage.cluster import GROUP, VERSION
from plumage_cli.cluster.client import ApiError, Cluster
from plumage_cli.cluster.pools import name_of

__all__ = ["find_gateway", "gateways"]

_API = f"/apis/{GROUP}/{VERSION}"


def gateways(cluster: Cluster, everywhere: bool) -> list[dict[str, Any]]:
    """Those of the namespace, or of all; by namespace and name. None where the cluster does not know the kind."""
    place = "" if everywhere else f"/namespaces/{quote(cluster.namespace)}"
    try:
        found = cluster.get(f"{_API}{place}/inferencegateways")["items"]
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    return sorted(found, key=name_of)


def find_gateway(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """The one of that name in the namespace, or None."""
    path = f"{_API}/namespaces/{quote(cluster.namespace)}/inferencegateways/{quote(name, safe='')}"
    found: dict[str, Any] | None = cluster.find(path)
    return found
