"""The parts that every Kubernetes object has beside its spec."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from plumage.api.v1alpha1.field_types import Label, MapKey, StringMap, Subdomain
from plumage.api.v1alpha1.struct import Rule, Struct
from plumage.cluster import LONGEST_POOL_NAME

__all__ = ["API_VERSION", "NAMES_SERVICES", "Condition", "Generation", "ObjectMeta", "Tally"]

API_VERSION = "inference.plumage.dev/v1alpha1"

Generation = Annotated[int, Field(ge=0, le=2**53)]
Tally = Annotated[int, Field(ge=0, le=1_000_000)]
"""A number of replicas or routers in a status."""


# Kubernetes' bound in bytes for all annotations of an object. `kubectl apply` stores the whole manifest in one.
Annotations = dict[MapKey, Annotated[str, Field(max_length=262_144)]]


class ObjectMeta(Struct):
    """Name, namespace, labels and annotations. Fields that an API server adds are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Subdomain = Field(description="Name of the object, unique in its namespace.")
    namespace: Label = Field("default", description="Namespace of the object.")
    labels: StringMap = Field({}, max_length=64, description="Labels, to select objects by.")
    annotations: Annotations = Field({}, max_length=64, description="Annotations, for tools and people.")
    generation: Generation = Field(0, description="Version of the spec; set by the API server.")
    uid: str = Field("", max_length=64, description="Identity of this object; set by the API server.")


SERVICE = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

NAMES_SERVICES = Rule(
    at="metadata.name",
    must=f"must be a name of at most {LONGEST_POOL_NAME} characters: lowercase letters, digits and '-', beginning with "
    "a letter, ending with a letter or digit, since Services are named after it",
    cel=f"size(self.metadata.name) <= {LONGEST_POOL_NAME} && self.metadata.name.matches('{SERVICE}')",
    reads=("metadata",),
    holds=lambda kind: (
        len(kind.metadata.name) <= LONGEST_POOL_NAME and re.fullmatch(SERVICE, kind.metadata.name) is not None
    ),
)
"""The rule for the name of a kind with Services NAME-PART. They are DNS labels (RFC 1035), so it is shorter."""


class Condition(Struct):
    """One condition of an object."""

    model_config = ConfigDict(extra="ignore")  # the operator may be newer

    type: str = Field(max_length=316, description="Name of the condition, e.g. Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition is true.")
    reason: str = Field(max_length=1024, description="The cause, as one CamelCase word.")
    message: str = Field("", max_length=32_768, description="The cause, as text.")
    observed_generation: Generation = Field(0, description="The spec's generation that this condition describes.")
    last_transition_time: str = Field("", max_length=64, description="When the status last changed (RFC 3339).")
