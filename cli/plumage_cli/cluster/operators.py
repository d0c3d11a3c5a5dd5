"""The operators of a cluster: their Deployments, settings and service accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage_cli.cluster.client import Cluster

__all__ = ["operators", "setting", "settings", "user_of"]

_OPERATORS = {"labelSelector": "app.kubernetes.io/component=operator,app.kubernetes.io/name=plumage"}


def operators(cluster: Cluster) -> list[dict[str, Any]]:
    """The Deployments of all operators."""
    found: list[dict[str, Any]] = cluster.get("/apis/apps/v1/deployments", _OPERATORS)["items"]
    return found


def setting(operator: Mapping[str, Any], name: str, default: str = "") -> str:
    """The value of an environment variable of its container."""
    variables = operator["spec"]["template"]["spec"]["containers"][0].get("env") or []
    return next((one["value"] for one in variables if one["name"] == name and one.get("value")), default)


def settings(operator: Mapping[str, Any], name: str) -> list[str]:
    """The items of a comma-separated environment variable."""
    return [item for item in setting(operator, name).split(",") if item]


def user_of(operator: Mapping[str, Any]) -> str:
    """The user name of its service account."""
    account = operator["spec"]["template"]["spec"].get("serviceAccountName", "default")
    return f"system:serviceaccount:{operator['metadata']['namespace']}:{account}"
