"""The objects of a rendered chart, and the rules of pod security "restricted" for a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["CHART", "ROOT", "Rendered", "pod_specs", "unrestricted"]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "plumage"


class Rendered:
    """The objects of one rendering, and its notes."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        texts = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
        self.objects: list[dict[str, Any]] = [one for text in texts for one in _documents(text)]

    @property
    def notes(self) -> str:
        return next(text for name, text in self.files.items() if name.endswith("NOTES.txt"))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> dict[str, Any]:
        """The only object of this kind, or of this kind and name."""
        found = [one for one in self.of(kind) if name in (None, one["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} objects are {kind} {name or ''}"
        return found[0]

    @property
    def names(self) -> set[str]:
        """`KIND/NAME`, or `KIND/NAMESPACE/NAME`."""
        return {
            "/".join(filter(None, (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])))
            for one in self.objects
        }


def pod_specs(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod spec in the objects."""
    for one in objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "Pod":
            yield name, one["spec"]
        elif "template" in one.get("spec", {}):
            yield name, one["spec"]["template"]["spec"]


def _documents(text: str) -> list[dict[str, Any]]:
    """Parses YAML, with libyaml where it is installed: a CRD has 120 KB."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text, Loader=loader) if one]  # both are safe loaders


_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def unrestricted(pod: Mapping[str, Any]) -> list[str]:
    """What pod security "restricted" refuses in a pod, and a writable root file system."""
    wrong = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    wrong += [f"volume {one['name']}" for one in pod.get("volumes", ()) if not _VOLUMES.issuperset(set(one) - {"name"})]
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        own, shared = container.get("securityContext", {}), pod.get("securityContext", {})
        asked = {
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "privileged": not own.get("privileged"),
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "runAsNonRoot": own.get("runAsNonRoot", shared.get("runAsNonRoot")) is True,
            "runAsUser": own.get("runAsUser", shared.get("runAsUser")) != 0,
            "seccompProfile": own.get("seccompProfile", shared.get("seccompProfile")) == {"type": "RuntimeDefault"},
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
        }
        wrong += [f"{container['name']}: {name}" for name, kept in asked.items() if not kept]
    return wrong
