"""The API server's own record of what the operator asked and was not allowed: also of what kopf asks, and of what the
operator keeps to itself."""

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
"""A resource as an access review calls its parts, and as the record does."""


class Audit:
    """Of one API server. folder: for its policy and its log. user: whose requests are recorded, and no others."""

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
        """The API server's. It writes a line before it answers."""
        return f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}"

    @property
    def allowed(self) -> int:
        """How many requests were."""
        return sum(_decision(entry) == "allow" for entry in self._entries())

    @property
    def forbidden(self) -> list[str]:
        """Verb and address of each request that was. A quota's refusal is none of them."""
        return [_told(one) for one in self._refused()]

    def written(self, namespace: str) -> list[str]:
        """Resources and names that it wrote there, in their order; events are none of them."""
        about = [one["objectRef"] for one in self._entries() if one["verb"] in _WRITES and "objectRef" in one]
        return [
            f"{one['resource']}/{one.get('name', '')}"
            for one in about
            if one.get("namespace") == namespace and one["resource"] != "events"
        ]

    def lacking(self, kubectl: Callable[..., str]) -> list[str]:
        """Of `forbidden` what the user has no right for even now, each kind of request once. An API server that was
        started again forbids everything until it knows its roles. kubectl: the user's own."""
        kinds = {json.dumps(review := _review(one), sort_keys=True): (review, _told(one)) for one in self._refused()}
        return [told for review, told in kinds.values() if not _may(kubectl, review)]

    def _refused(self) -> list[dict[str, Any]]:
        return [one for one in self._entries() if _decision(one) == "forbid"]

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def _decision(entry: dict[str, Any]) -> object:
    return entry.get("annotations", {}).get("authorization.k8s.io/decision")


def _told(entry: dict[str, Any]) -> str:
    return f"{entry['verb']} {entry['requestURI']}"


def _review(entry: dict[str, Any]) -> dict[str, Any]:
    """The same request as a question. An address that names no resource has no objectRef."""
    about = entry.get("objectRef")
    if about is None:
        asked = {"nonResourceAttributes": {"verb": entry["verb"], "path": entry["requestURI"].split("?")[0]}}
    else:
        parts = {part: about[key] for part, key in _PARTS.items() if key in about}
        asked = {"resourceAttributes": {"verb": entry["verb"], **parts}}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}


def _may(kubectl: Callable[..., str], review: dict[str, Any]) -> bool:
    """Raw, for kubectl would read definitions first, which is forbidden, too."""
    answer = kubectl("create", "--raw", _REVIEWS, "-f", "-", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])
