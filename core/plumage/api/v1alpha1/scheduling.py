"""Where a pod may go: Kubernetes' own scheduling fields, affinity and topology spread constraints as of 1.36, each part
bounded.

All defaults here are empty, and what a person wrote is handed on as it is. A misspelt field is refused here and by an
API server; whether the values fit one another (In without values, say) Kubernetes judges, when a pool's Deployment is
made.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from plumage.api.v1alpha1.field_types import Label, LabelName, StringMap, Subdomain
from plumage.api.v1alpha1.pods import Toleration
from plumage.api.v1alpha1.struct import Struct

__all__ = ["Affinity", "Placement", "TopologySpreadConstraint", "as_written"]

Weight = Annotated[int, Field(ge=1, le=100)]
Policy = Literal["Honor", "Ignore"]
Values = tuple[Annotated[str, Field(max_length=253)], ...]
LabelKeys = tuple[LabelName, ...]
Namespaces = tuple[Label, ...]
_TERMS = 16
_VALUES = 256  # of one expression: names of nodes, say


def as_written(part: Struct) -> dict[str, Any]:
    """The part in JSON's types, less its empty lists and maps, which an API server does not keep."""
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class NodeSelectorRequirement(Struct):
    """What one label, or one field, of a node must be."""

    key: LabelName = Field(description="Key of the label, or name of the field.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How its value is compared."
    )
    values: Values = Field(
        (), strict=False, max_length=_VALUES, description="What it is compared with; none for Exists and DoesNotExist."
    )


class NodeSelectorTerm(Struct):
    """A node fits when all of these hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Of the node's labels."
    )
    match_fields: tuple[NodeSelectorRequirement, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Of the node's fields; there is metadata.name."
    )


class NodeSelector(Struct):
    """A node fits when one of the terms does."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = Field(
        strict=False, max_length=_TERMS, description="The terms, of which one must fit."
    )


class PreferredSchedulingTerm(Struct):
    """Nodes that are preferred."""

    weight: Weight = Field(description="How much this preference counts beside others.")
    preference: NodeSelectorTerm = Field(description="The nodes.")


class NodeAffinity(Struct):
    """Nodes that pods must or should go to."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        None, description="Nodes that pods may go to; all when absent."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Nodes that pods go to rather."
    )


class LabelSelectorRequirement(Struct):
    """What one label must be."""

    key: LabelName = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How its value is compared.")
    values: Values = Field(
        (), strict=False, max_length=_VALUES, description="What it is compared with; none for Exists and DoesNotExist."
    )


class LabelSelector(Struct):
    """What labels must be; all of it must hold, and nothing at all fits everything."""

    match_labels: StringMap = Field({}, max_length=64, description="Labels with their values.")
    match_expressions: tuple[LabelSelectorRequirement, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Further conditions."
    )


class PodAffinityTerm(Struct):
    """Pods to be near to, or away from, and what near is."""

    topology_key: LabelName = Field(description="Nodes with the same value of this label are near one another.")
    label_selector: LabelSelector | None = Field(None, description="The pods, by their labels; none when absent.")
    namespaces: Namespaces = Field(
        (), strict=False, max_length=64, description="Namespaces of the pods; the pool's own when nothing names any."
    )
    namespace_selector: LabelSelector | None = Field(None, description="Namespaces of the pods, by their labels.")
    match_label_keys: LabelKeys = Field(
        (), strict=False, max_length=_TERMS, description="Labels whose value must be the new pod's own."
    )
    mismatch_label_keys: LabelKeys = Field(
        (), strict=False, max_length=_TERMS, description="Labels whose value may not be the new pod's own."
    )


class WeightedPodAffinityTerm(Struct):
    """Pods to be rather near to, or away from."""

    weight: Weight = Field(description="How much this preference counts beside others.")
    pod_affinity_term: PodAffinityTerm = Field(description="The pods.")


class PodAffinity(Struct):
    """Pods that pods must or should be near to, or away from."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = Field(
        (), strict=False, max_length=_TERMS, description="What must hold when a pod is placed."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = Field(
        (), strict=False, max_length=_TERMS, description="What should hold when a pod is placed."
    )


class Affinity(Struct):
    """A pod's affinity, as Kubernetes has it."""

    node_affinity: NodeAffinity | None = Field(None, description="Nodes that pods must or should go to.")
    pod_affinity: PodAffinity | None = Field(None, description="Pods that they must or should be near to.")
    pod_anti_affinity: PodAffinity | None = Field(None, description="Pods that they must or should be away from.")


class TopologySpreadConstraint(Struct):
    """How evenly pods spread, as Kubernetes has it."""

    max_skew: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="Most pods that one zone may have above the one with fewest."
    )
    topology_key: LabelName = Field(description="Nodes with the same value of this label are one zone.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="What becomes of a pod that no node fits: it waits, or goes where it is least uneven."
    )
    label_selector: LabelSelector | None = Field(None, description="The pods that are counted; none when absent.")
    min_domains: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Zones that there should be; with DoNotSchedule only. 1 when absent."
    )
    node_affinity_policy: Policy | None = Field(
        None, description="Whether nodes that affinity and nodeSelector rule out are left out; Honor when absent."
    )
    node_taints_policy: Policy | None = Field(
        None, description="Whether nodes with taints that pods don't accept are left out; Ignore when absent."
    )
    match_label_keys: LabelKeys = Field(
        (), strict=False, max_length=_TERMS, description="Labels whose value must be the new pod's own."
    )


class Placement(Struct):
    """The scheduling fields of a part's pods: the same for engines, routers, gateways and directories."""

    node_selector: StringMap = Field({}, max_length=64, description="Labels that a node must have.")
    tolerations: tuple[Toleration, ...] = Field((), strict=False, max_length=32, description="Taints accepted.")
    affinity: Affinity | None = Field(None, description="A pod's affinity, handed on as it is.")
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = Field(
        (),
        strict=False,
        max_length=16,
        description="A pod's topology spread constraints, handed on as they are. Pods spread over nodes as evenly as "
        "there is room (kubernetes.io/hostname, ScheduleAnyway) when absent.",
    )
    priority_class_name: Subdomain | None = Field(None, description="Priority class of the pods.")
