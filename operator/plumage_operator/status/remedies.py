"""What to change when a pod is not ready, in fields that the pod's component has. Pure.

Components have their fields in different places, and a remedy with another component's field costs the reader an hour.
`tests/unit/operator/test_remedies.py` checks each path here against the API's models and the chart's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plumage.cluster import COMPONENT_LABEL
from plumage_operator.observed import Object, meta

__all__ = ["ContainerRef", "container_of", "give_memory", "lower_requests", "make_image_available", "set_limits"]


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container of a component's pods.

    component: engine, router, gateway or directory.
    container: its name without the suffix of a pool in a gateway's pod; empty for the whole pod.
    """

    component: str
    container: str = ""


_RESOURCES: Final[Mapping[ContainerRef, str]] = {
    ContainerRef("engine", "engine"): "spec.engine.resources",
    ContainerRef("engine", "agent"): "spec.engine.agentResources",
    ContainerRef("engine", "tokenizer"): "spec.model.fetchResources",
    ContainerRef("engine", "weights"): "spec.model.fetchResources",
    ContainerRef("router", "router"): "spec.router.resources",
    ContainerRef("router", "tokenizer"): "spec.model.fetchResources",
    ContainerRef("gateway", "router"): "spec.resources",
    ContainerRef("gateway", "tokenizer"): "the pool's spec.model.fetchResources",
    ContainerRef("directory", "directory"): "spec.directory.managed.resources",
}
"""The field with a container's resources. A gateway's tokenizer has those of its pool."""

_PLACES: Final[Mapping[str, str]] = {
    component: ", ".join((f"{place}.nodeSelector", f"{place}.tolerations")) + f" or {place}.affinity"
    for component, place in (
        ("engine", "spec.engine"),
        ("router", "spec.router"),
        ("gateway", "spec"),
        ("directory", "spec.directory.managed"),
    )
}
"""The fields that say on which nodes a component's pods may run."""

_ENGINE_IMAGES: Final = frozenset({"engine", "weights"})
"""Containers of an engine's pod that run the engine's image; the others run Plumage's own."""


def container_of(pod: Object, container: str = "") -> ContainerRef:
    """The container's reference: `tokenizer-chat` of a gateway is a tokenizer."""
    component = str((meta(pod).get("labels") or {}).get(COMPONENT_LABEL, "engine"))
    return ContainerRef(component, "tokenizer" if container.startswith("tokenizer") else container)


def give_memory(container_ref: ContainerRef) -> str:
    """Returns the remedy for a container that was killed because it ran out of memory."""
    lower = {
        ContainerRef(
            "engine", "engine"
        ): ", or reduce the memory of the model, its cache or spec.engine.hostMemory.capacity",
        ContainerRef("directory", "directory"): ", or lower spec.directory.managed.maxMemory",
    }
    field = _RESOURCES.get(container_ref)
    if field is None:
        return "Raise the limit of its container, which does not belong to Plumage."
    return f"Raise {field}.limits.memory{lower.get(container_ref, '')}."


def lower_requests(container_ref: ContainerRef) -> str:
    """Returns the remedy for a pod that fits on no node."""
    whole = ContainerRef(
        container_ref.component, container_ref.component if container_ref.component != "gateway" else "router"
    )
    fields = [field for field in (_RESOURCES.get(whole), _PLACES.get(container_ref.component)) if field]
    return f"Add nodes, or change {', '.join(fields)}." if fields else "Add nodes, or free room on those there are."


def set_limits(component: str, containers: Sequence[str]) -> str:
    """Returns the remedy for a quota that refuses pods, since containers lack requests or limits of what it counts.

    A container that an admission webhook adds does not belong to Plumage: a LimitRange gives it defaults.
    """
    parts = [ContainerRef(component, "tokenizer" if one.startswith("tokenizer") else one) for one in containers]
    fields = list(dict.fromkeys(_RESOURCES[container_ref] for container_ref in parts if container_ref in _RESOURCES))
    without = [one for one, container_ref in zip(containers, parts, strict=True) if container_ref not in _RESOURCES]
    remedies = [f"Set {' and '.join(fields)}."] if fields else []
    if without:
        remedies.append(f"Give the namespace a LimitRange with defaults, for {', '.join(without)}.")
    return " ".join(remedies) or "Give the namespace a LimitRange with defaults."


def make_image_available(container_ref: ContainerRef) -> str:
    """Returns the remedy for a container whose image can't be pulled."""
    if container_ref.component == "engine" and container_ref.container in _ENGINE_IMAGES:
        return (
            "Correct spec.engine.image (where it is absent, the chart's values under engineImage), or add "
            "spec.engine.imagePullSecrets."
        )
    return "Correct the chart's values image.repository and image.tag, or add its imagePullSecrets."
