"""The API server's audit log of what the operator requested and was not allowed. It also shows kopf's requests, and
those whose failure the operator does not report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Audit"]

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WRITES = ("create", "update", "patch", "delete")
_PARTS = {
    "namespace": "namespace", "group": "apiGroup", "version": "apiVersion", "resource": "resource",
    "subresource": "subresource", "name": "name",
}  # fmt: skip
"""The parts of a resource: names in an access review, and names in the audit log."""


class Audit:
    """The audit log of one API server. folder: for its policy and its log. user: the only user whose requests are
    recorded."""

    def __init__(self, folder: Path, user: str) -> None:
        self._policy, self._log = folder / "policy.yaml", folder / "audit.log"
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": [user]}, {"level": "None"}],
        }
        self._policy.write_text(yaml.safe_dump(policy))

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the API server. It writes a line before it answers."""
        return f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}"

    @property
    def allowed(self) -> int:
        """The number of allowed requests."""
        return sum(_decision(entry) == "allow" for entry in self._entries())

    @property
    def forbidden(self) -> list[str]:
        """Verb and address of each forbidden request. A quota's refusal is not counted."""
        return [_request(one) for one in self._refused()]

    def written(self, namespace: str) -> list[str]:
        """The resources and names that the user wrote there, in order, without events."""
        about = [one["objectRef"] for one in self._entries() if one["verb"] in _WRITES and "objectRef" in one]
        return [
            f"{one['resource']}/{one.get('name', '')}"
            for one in about
            if one.get("namespace") == namespace and one["resource"] != "events"
        ]

    def lacking(self, kubectl: Callable[..., str]) -> list[str]:
        """Those of `forbidden` for which the user has no right even now; each kind of request once. A restarted API
        server forbids every request until it knows its roles. kubectl: with the user's credentials."""
        kinds = {json.dumps(review := _review(one), sort_keys=True): (review, _request(one)) for one in self._refused()}
        return [request for review, request in kinds.values() if not _may(kubectl, review)]

    def _refused(self) -> list[dict[str, Any]]:
        return [one for one in self._entries() if _decision(one) == "forbid"]

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def _decision(entry: dict[str, Any]) -> object:
    return entry.get("annotations", {}).get("authorization.k8s.io/decision")


def _request(entry: dict[str, Any]) -> str:
    return f"{entry['verb']} {entry['requestURI']}"


def _review(entry: dict[str, Any]) -> dict[str, Any]:
    """The same request as an access review. An address that names no resource has no objectRef."""
    about = entry.get("objectRef")
    if about is None:
        asked = {"nonResourceAttributes": {"verb": entry["verb"], "path": entry["requestURI"].split("?")[0]}}
    else:
        parts = {part: about[key] for part, key in _PARTS.items() if key in about}
        asked = {"resourceAttributes": {"verb": entry["verb"], **parts}}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}


def _may(kubectl: Callable[..., str], review: dict[str, Any]) -> bool:
    """Whether the review allows it. Sent with `--raw`: kubectl would read definitions first, which is forbidden too."""
    answer = kubectl("create", "--raw", _REVIEWS, "-f", "-", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])
