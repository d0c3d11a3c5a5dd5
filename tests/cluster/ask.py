"""The requests that the start of a cluster sends to the API server, without a client library."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import Any

from cluster.control_plane import ControlPlane

__all__ = ["is_ready", "ready_nodes"]

_LIMIT_S = 5.0


def is_ready(plane: ControlPlane) -> bool:
    """Whether /readyz answers 200. No answer counts as not ready."""
    return _get(plane, "/readyz") == b"ok"


def ready_nodes(plane: ControlPlane) -> set[str]:
    """The names of the nodes with the condition Ready."""
    answer = _get(plane, "/api/v1/nodes")
    nodes: list[dict[str, Any]] = json.loads(answer)["items"] if answer else []
    return {node["metadata"]["name"] for node in nodes if _says_ready(node)}


def _says_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _get(plane: ControlPlane, path: str) -> bytes | None:
    request = urllib.request.Request(plane.url + path, headers={"Authorization": f"Bearer {plane.token}"})
    trusted = ssl.create_default_context(cafile=str(plane.certificate("ca.crt")))
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT_S, context=trusted) as answer:
            content: bytes = answer.read()
            return content
    except OSError:  # urllib's errors are
        return None
