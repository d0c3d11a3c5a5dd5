"""The InferenceGateways of a cluster. Unknown fields of a newer operator are ignored."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from plumage.cluster import GROUP, VERSION
from plumage_cli.cluster.client import ApiError, Cluster
from plumage_cli.cluster.pools import name_of

__all__ = ["find_gateway", "gateways"]

_API = f"/apis/{GROUP}/{VERSION}"


def gateways(cluster: Cluster, everywhere: bool) -> list[dict[str, Any]]:
    """The gateways, sorted by namespace and name. Empty where the CRD is missing. everywhere: of all namespaces."""
    place = "" if everywhere else f"/namespaces/{quote(cluster.namespace)}"
    try:
        found = cluster.get(f"{_API}{place}/inferencegateways")["items"]
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    return sorted(found, key=name_of)


def find_gateway(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """The gateway `name` of the namespace, or None."""
    path = f"{_API}/namespaces/{quote(cluster.namespace)}/inferencegateways/{quote(name, safe='')}"
    found: dict[str, Any] | None = cluster.find(path)
    return found
