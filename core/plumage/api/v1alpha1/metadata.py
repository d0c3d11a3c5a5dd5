"""What every Kubernetes object carries around its spec."""

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


# All of an object's together have so many bytes in Kubernetes. `kubectl apply` keeps the whole manifest in one.
Annotations = dict[MapKey, Annotated[str, Field(max_length=262_144)]]


class ObjectMeta(Struct):
    """Name, namespace, labels, annotations; what an API server adds to them is accepted and left alone."""

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
"""Of a kind whose Services are called NAME-PART: what a DNS label leaves (RFC 1035), shorter than an object's name."""


class Condition(Struct):
    """One aspect of an object's state."""

    model_config = ConfigDict(extra="ignore")  # of an operator that may be newer

    type: str = Field(max_length=316, description="What the condition is about, e.g. Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="Why, in one CamelCase word.")
    message: str = Field("", max_length=32_768, description="Why, for people.")
    observed_generation: Generation = Field(0, description="The spec's version that this was said about.")
    last_transition_time: str = Field("", max_length=64, description="When the status last changed (RFC 3339).")
