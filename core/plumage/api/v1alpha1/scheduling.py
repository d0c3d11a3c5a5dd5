"""Where a pod may run: Kubernetes' own scheduling fields, with affinity and topology spread constraints of 1.36. Each
part is bounded.

All defaults are empty, and a user's value is passed on as it is. A misspelt field is refused here and by an API server.
Kubernetes checks whether values fit together (such as In without values) when a pool's Deployment is made.
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
_VALUES = 256  # of one expression, such as names of nodes


def as_written(part: Struct) -> dict[str, Any]:
    """The part in JSON's types, without empty lists and maps, which an API server does not store."""
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class NodeSelectorRequirement(Struct):
    """A requirement on one label or field of a node."""

    key: LabelName = Field(description="Key of the label, or name of the field.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How its value is compared."
    )
    values: Values = Field(
        (), strict=False, max_length=_VALUES, description="What it is compared with; none for Exists and DoesNotExist."
    )


class NodeSelectorTerm(Struct):
    """A node fits if all requirements are met."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Requirements on the node's labels."
    )
    match_fields: tuple[NodeSelectorRequirement, ...] = Field(
        (),
        strict=False,
        max_length=_TERMS,
        description="Requirements on the node's fields. The only field is metadata.name.",
    )


class NodeSelector(Struct):
    """A node fits if one of the terms fits."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = Field(
        strict=False, max_length=_TERMS, description="The terms. One must fit."
    )


class PreferredSchedulingTerm(Struct):
    """A preference for nodes."""

    weight: Weight = Field(description="Weight of this preference.")
    preference: NodeSelectorTerm = Field(description="The nodes.")


class NodeAffinity(Struct):
    """Nodes on which pods must or should run."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        None, description="Nodes on which pods may run. When absent, all nodes."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Preferred nodes."
    )


class LabelSelectorRequirement(Struct):
    """A requirement on one label."""

    key: LabelName = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How its value is compared.")
    values: Values = Field(
        (), strict=False, max_length=_VALUES, description="What it is compared with; none for Exists and DoesNotExist."
    )


class LabelSelector(Struct):
    """Requirements on labels. All must be met. Without requirements everything fits."""

    match_labels: StringMap = Field({}, max_length=64, description="Labels with their values.")
    match_expressions: tuple[LabelSelectorRequirement, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Further conditions."
    )


class PodAffinityTerm(Struct):
    """Pods to be near to or away from, and the meaning of near."""

    topology_key: LabelName = Field(description="Nodes with the same value of this label are near one another.")
    label_selector: LabelSelector | None = Field(None, description="The pods, by their labels. When absent, none.")
    namespaces: Namespaces = Field(
        (),
        strict=False,
        max_length=64,
        description="Namespaces of the pods. Without namespaces and namespaceSelector, the pool's.",
    )
    namespace_selector: LabelSelector | None = Field(None, description="Namespaces of the pods, by their labels.")
    match_label_keys: LabelKeys = Field(
        (), strict=False, max_length=_TERMS, description="Labels whose value must be the new pod's own."
    )
    mismatch_label_keys: LabelKeys = Field(
        (), strict=False, max_length=_TERMS, description="Labels whose value may not be the new pod's own."
    )


class WeightedPodAffinityTerm(Struct):
    """A preference to be near to or away from pods."""

    weight: Weight = Field(description="Weight of this preference.")
    pod_affinity_term: PodAffinityTerm = Field(description="The pods.")


class PodAffinity(Struct):
    """Pods that a pod must or should be near to or away from."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Terms that must be met when a pod is placed."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = Field(
        (), strict=False, max_length=_TERMS, description="Terms that should be met when a pod is placed."
    )


class Affinity(Struct):
    """A pod's affinity, as in Kubernetes."""

    node_affinity: NodeAffinity | None = Field(None, description="Nodes on which pods must or should run.")
    pod_affinity: PodAffinity | None = Field(None, description="Pods that they must or should be near to.")
    pod_anti_affinity: PodAffinity | None = Field(None, description="Pods that they must or should be away from.")


class TopologySpreadConstraint(Struct):
    """How evenly pods spread, as in Kubernetes."""

    max_skew: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="The largest difference of pods between a zone and the zone with the fewest."
    )
    topology_key: LabelName = Field(description="Nodes with the same value of this label are one zone.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="Whether a pod that fits no node waits, or runs where the spread is most even."
    )
    label_selector: LabelSelector | None = Field(None, description="The counted pods. When absent, none.")
    min_domains: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="The least number of zones. Only with DoNotSchedule. When absent, 1."
    )
    node_affinity_policy: Policy | None = Field(
        None, description="Whether nodes that affinity and nodeSelector exclude do not count. When absent, Honor."
    )
    node_taints_policy: Policy | None = Field(
        None, description="Whether nodes with taints that pods do not accept do not count. When absent, Ignore."
    )
    match_label_keys: LabelKeys = Field(
        (), strict=False, max_length=_TERMS, description="Labels whose value must be the new pod's own."
    )


class Placement(Struct):
    """The scheduling fields of a component's pods: the same for engines, routers, gateways and directories."""

    node_selector: StringMap = Field({}, max_length=64, description="Labels that a node must have.")
    tolerations: tuple[Toleration, ...] = Field((), strict=False, max_length=32, description="Taints accepted.")
    affinity: Affinity | None = Field(None, description="A pod's affinity, passed on as it is.")
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = Field(
        (),
        strict=False,
        max_length=16,
        description="A pod's topology spread constraints, passed on as they are. When absent, pods spread over nodes "
        "as evenly as possible (kubernetes.io/hostname, ScheduleAnyway).",
    )
    priority_class_name: Subdomain | None = Field(None, description="Priority class of the pods.")
