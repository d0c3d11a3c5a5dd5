"""The operators of a cluster, by their Deployments: what each is told, and as whom it acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage_cli.cluster.client import Cluster

__all__ = ["operators", "setting", "user_of", "words"]

_OPERATORS = {"labelSelector": "app.kubernetes.io/component=operator,app.kubernetes.io/name=plumage"}


def operators(cluster: Cluster) -> list[dict[str, Any]]:
    """Their Deployments."""
    found: list[dict[str, Any]] = cluster.get("/apis/apps/v1/deployments", _OPERATORS)["items"]
    return found


def setting(operator: Mapping[str, Any], name: str, default: str = "") -> str:
    """What its container is told by its environment."""
    variables = operator["spec"]["template"]["spec"]["containers"][0].get("env") or []
    return next((one["value"] for one in variables if one["name"] == name and one.get("value")), default)


def words(operator: Mapping[str, Any], name: str) -> list[str]:
    """The same, where it is a list."""
    return [word for word in setting(operator, name).split(",") if word]


def user_of(operator: Mapping[str, Any]) -> str:
    """Its service account, as the API server calls it."""
    account = operator["spec"]["template"]["spec"].get("serviceAccountName", "default")
    return f"system:serviceaccount:{operator['metadata']['namespace']}:{account}"
