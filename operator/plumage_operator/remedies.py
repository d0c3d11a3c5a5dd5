"""What to change when a pod is not ready, in fields that the pod's component has. Pure.

A component's fields differ: an engine has all of a pod's scheduling fields, a gateway few. A remedy that names a field
of another component costs the reader an hour. `tests/unit/operator/test_remedies.py` checks each path that is named
here against the API's models and the chart's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plumage.cluster import COMPONENT_LABEL
from plumage_operator.observed import Object, meta

__all__ = ["Part", "give_memory", "lower_requests", "make_image_available", "part_of_container", "set_limits"]


@dataclass(frozen=True, slots=True)
class Part:
    """A container of a component's pods. component: engine, router, gateway or directory. container: its name without
    the mark of a pool that a gateway's containers carry; empty for the pod as a whole."""

    component: str
    container: str = ""


_RESOURCES: Final[Mapping[Part, str]] = {
    Part("engine", "engine"): "spec.engine.resources",
    Part("router", "router"): "spec.router.resources",
}
"""The field with a container's resources, where it has one."""

_MEMORY: Final[Mapping[Part, str]] = {Part("directory", "directory"): "spec.directory.managed.maxMemory"}
"""The field that a container's memory limit is computed from, where the limit itself is no field."""

_PLACES: Final[Mapping[str, str]] = {
    "engine": "spec.engine.nodeSelector, spec.engine.tolerations or spec.engine.affinity",
}
"""The fields that say on which nodes a component's pods may run."""

_ENGINE_IMAGES: Final = frozenset({"engine", "weights"})
"""Containers of an engine's pod that run the engine's image; the others run Plumage's own."""


def part_of_container(pod: Object, container: str = "") -> Part:
    """Which part a pod's container is: `tokenizer-chat` of a gateway is a tokenizer."""
    component = str((meta(pod).get("labels") or {}).get(COMPONENT_LABEL, "engine"))
    return Part(component, "tokenizer" if container.startswith("tokenizer") else container)


def give_memory(part: Part) -> str:
    """For a container that was killed for want of memory."""
    if part == Part("engine", "engine"):
        return (
            "Raise spec.engine.resources.limits.memory, or lower what the model, its cache and "
            "spec.engine.hostMemory.capacity take."
        )
    if part in _RESOURCES:
        return f"Raise {_RESOURCES[part]}.limits.memory."
    if part in _MEMORY:
        return f"Raise {_MEMORY[part]}."
    return "It has no limit of its own: give its node more memory, or raise the namespace's LimitRange."


def lower_requests(part: Part) -> str:
    """For a pod that no node has room for."""
    whole = Part(part.component, part.component if part.component != "gateway" else "router")
    fields = [field for field in (_RESOURCES.get(whole) or _MEMORY.get(whole), _PLACES.get(part.component)) if field]
    return f"Add nodes, or change {', '.join(fields)}." if fields else "Add nodes, or free room on those there are."


def set_limits(component: str, containers: Sequence[str]) -> str:
    """For pods that a quota refuses because containers have no requests or limits."""
    parts = [Part(component, "tokenizer" if one.startswith("tokenizer") else one) for one in containers]
    fields = [_RESOURCES[part] for part in parts if part in _RESOURCES]
    without = [one for one, part in zip(containers, parts, strict=True) if part not in _RESOURCES]
    told = [f"Set {' and '.join(fields)}."] if fields else []
    if without:
        told.append(f"Give the namespace a LimitRange with defaults, for {', '.join(without)}.")
    return " ".join(told) or "Give the namespace a LimitRange with defaults."


def make_image_available(part: Part) -> str:
    """For a container whose image can't be pulled."""
    if part.component == "engine" and part.container in _ENGINE_IMAGES:
        return (
            "Correct spec.engine.image (where it is absent, the chart's values under engineImage), or add "
            "spec.engine.imagePullSecrets."
        )
    return "Correct the chart's values image.repository and image.tag, or add its imagePullSecrets."
