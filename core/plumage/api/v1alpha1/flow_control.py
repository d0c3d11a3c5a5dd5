"""`spec.flowControl` of a pool: the queue of requests that no replica has room for."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.field_types import Label, Seconds
from plumage.api.v1alpha1.quotas import Tenant
from plumage.api.v1alpha1.struct import LIST_KEY, Struct, named_once
from plumage.queueing import QueueOrder

__all__ = ["PoolFlowControlSpec", "PriorityClassSpec"]


class PriorityClassSpec(Struct):
    """A class of requests. Clients name it in the header X-Plumage-Class."""

    name: Label = Field(max_length=63, description="Name in the header.")
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Share of the service while several classes wait, relative to theirs."
    )
    ttft_milliseconds: Annotated[int, Field(ge=10, le=3_600_000)] | None = Field(
        None,
        description="Objective of the time to first token. A request that cannot meet it gets 429 at once. None when "
        "absent: such requests may wait for maxSeconds.",
    )
    tenants: tuple[Tenant, ...] = Field(
        (),
        strict=False,
        max_length=256,
        description="Tenants that may use the class; all when empty, or with `*`.",
    )


class PoolFlowControlSpec(Struct):
    """When no replica has room, requests wait in the router. Classes share by weight, their tenants equally."""

    max_requests: Annotated[int, Field(ge=1, le=10_000)] = Field(
        defaults.QUEUE_REQUESTS, description="The most waiting requests of one router. Others get 429."
    )
    max_seconds: Seconds = Field(
        defaults.QUEUE_SECONDS, description="The longest wait of a request without an objective."
    )
    engine_queue_milliseconds: Annotated[int, Field(ge=10, le=60_000)] = Field(
        defaults.ENGINE_QUEUE_MILLISECONDS,
        description="About how long a request may wait in an engine. A replica has room while its new prompts "
        "have fewer tokens than it computes in this time, or while fewer than 2 requests wait to start.",
    )
    order: QueueOrder = Field(
        defaults.QUEUE_ORDER,
        description="Which of a tenant's requests goes first. Deadline: the one with the earliest deadline. SloScore: "
        "the one with the least cost, times the time that it has left. Cached tokens cost nothing.",
    )
    classes: tuple[PriorityClassSpec, ...] = Field(
        (PriorityClassSpec(name="default"),),
        strict=False,
        min_length=1,
        max_length=16,
        description="The classes. A request that names none belongs to the first one that its tenant may use.",
        json_schema_extra={LIST_KEY: "name"},
    )
    rules: ClassVar = (named_once("classes", "a class", "name"),)
