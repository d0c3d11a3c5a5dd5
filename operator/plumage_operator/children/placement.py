"""Where a part's pods may go: what a manifest names, and a spread over nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumage.api.v1alpha1.scheduling import Placement, as_written

__all__ = ["placed"]


def placed(told: Placement, selector: Mapping[str, str] | None) -> dict[str, Any]:
    """The scheduling fields of a pod, as the manifest has them. selector: of the part's pods, which spread over nodes
    where the manifest names no spread of its own; None for a part of one pod."""
    spread = [as_written(one) for one in told.topology_spread_constraints]
    if not spread and selector is not None:
        spread = [_over_nodes(selector)]
    fields = {
        "nodeSelector": dict(told.node_selector),
        "tolerations": [_toleration(one.model_dump(exclude_none=True, by_alias=True)) for one in told.tolerations],
        "affinity": as_written(told.affinity) if told.affinity is not None else None,
        "topologySpreadConstraints": spread,
        "priorityClassName": told.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def _over_nodes(selector: Mapping[str, str]) -> dict[str, Any]:
    """Soft, so that a pool larger than its cluster starts all the same. Pods of one template are counted alone: those
    that a rollout replaces are about to go."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selector)},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _toleration(told: dict[str, Any]) -> dict[str, Any]:
    """Less its empty strings, which the API server does not keep."""
    return {name: value for name, value in told.items() if value != ""}
