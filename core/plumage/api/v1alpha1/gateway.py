"""`InferenceGateway`: one address for several pools (listeners, the pools of each model, keys, limits)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from plumage import defaults
from plumage.api.v1alpha1.cel import entries_differ
from plumage.api.v1alpha1.exposure import TlsSpec, TracingSpec
from plumage.api.v1alpha1.field_types import Label, ObjectRef, RequestField
from plumage.api.v1alpha1.metadata import NAMES_SERVICES, Condition, Generation, ObjectMeta, Tally
from plumage.api.v1alpha1.model import ServedName
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.router import AuthSpec, ServiceType
from plumage.api.v1alpha1.scheduling import Placement
from plumage.api.v1alpha1.struct import LIST_KEY, Rule, Struct, named_once

__all__ = [
    "FlowControlSpec",
    "GatewayModel",
    "GatewayServiceSpec",
    "InferenceGateway",
    "InferenceGatewaySpec",
    "InferenceGatewayStatus",
    "Listener",
    "RequestMirrorSpec",
    "WeightedPool",
]


class Listener(Struct):
    """A port that clients reach."""

    name: Label = Field(description="Name of the listener.")
    port: Annotated[int, Field(ge=1, le=65_535)] = Field(description="Port of the Service.")


class WeightedPool(Struct):
    """A pool that may serve a model."""

    pool_ref: ObjectRef = Field(description="The InferencePool, whose spec.router.gatewayRef names this gateway.")
    weight: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        1,
        description="Share of the model's conversations, relative to the other pools. With 0 the pool only continues "
        "the responses that it stores.",
    )


class RequestMirrorSpec(Struct):
    """Copies of a model's requests, for a pool whose answers nobody gets."""

    pool_ref: ObjectRef = Field(
        description="The InferencePool that gets the copies. Its spec.router.gatewayRef names this gateway."
    )
    percent: Annotated[int, Field(ge=0, le=100)] = Field(
        100, description="Share of the model's conversations, of which every request is copied."
    )


def _mirrors_elsewhere(model: Any) -> bool:
    mirror = model.request_mirror
    return mirror is None or all(pool.pool_ref != mirror.pool_ref for pool in model.pools if pool.weight)


class GatewayModel(Struct):
    """A model's name, and the pools that serve it."""

    name: ServedName = Field(description="Name that clients ask for.")
    aliases: tuple[ServedName, ...] = Field(
        (), strict=False, max_length=16, description="Further names.", json_schema_extra={LIST_KEY: ""}
    )
    pools: tuple[WeightedPool, ...] = Field(
        strict=False, min_length=1, max_length=16, description="The pools that serve it, each its share."
    )
    fallback: ServedName | None = Field(
        None,
        description="Name of another model of this gateway. It answers while no pool of this model has a replica.",
    )
    request_mirror: RequestMirrorSpec | None = Field(
        None,
        description="A second pool that gets copies of the model's requests. Its answers are read, counted and "
        "discarded. None when absent.",
    )
    rules: ClassVar = (
        Rule(
            at="pools",
            must="must have a pool with a weight above 0",
            cel="self.pools.exists(pool, pool.weight > 0)",
            reads=("pools",),
            holds=lambda model: any(pool.weight for pool in model.pools),
        ),
        named_once("pools", "a pool", "poolRef.name"),
        Rule(
            at="requestMirror",
            must="may not name a pool of this model with a weight above 0: clients get that pool's answers",
            cel="!has(self.requestMirror) || !self.pools.exists(pool, pool.weight > 0 && "
            "pool.poolRef.name == self.requestMirror.poolRef.name)",
            reads=("pools", "request_mirror"),
            holds=_mirrors_elsewhere,
        ),
    )


class GatewayServiceSpec(ServiceType):
    """The Service of a gateway. Its ports are those of the listeners."""


class FlowControlSpec(Struct):
    """Bounds of the gateway. Clients get an error beyond them."""

    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        defaults.MAX_IN_FLIGHT, description="The most requests in flight, of all pools together."
    )


_NAMES_DIFFER = (
    "self.models.all(one, (!has(one.aliases) || !(one.name in one.aliases)) && "
    "([one.name] + (has(one.aliases) ? one.aliases : [])).all(name, self.models.exists_one(other, "
    "other.name == name || (has(other.aliases) && name in other.aliases))))"
)


_FALLBACKS_EXIST = (
    "self.models.all(one, !has(one.fallback) || self.models.exists(other, other.name != one.name && "
    "other.name == one.fallback))"
)


def _fallbacks_exist(spec: Any) -> bool:
    names = {model.name for model in spec.models}
    return all(model.fallback is None or model.fallback in names - {model.name} for model in spec.models)


def _names(models: Any) -> list[str]:
    return [name for model in models for name in (model.name, *model.aliases)]


class InferenceGatewaySpec(Placement):
    """The desired state of the gateway."""

    replicas: Annotated[int, Field(ge=1, le=100)] = Field(2, description="Routers of this gateway.")
    listeners: tuple[Listener, ...] = Field(
        (Listener(name="http", port=8000),),
        strict=False,
        min_length=1,
        max_length=16,
        description="Ports that clients reach.",
        json_schema_extra={LIST_KEY: "name"},
    )
    models: tuple[GatewayModel, ...] = Field(
        strict=False,
        min_length=1,
        max_length=64,
        description="Models, and the pools that serve them.",
        json_schema_extra={LIST_KEY: "name"},
    )
    auth: AuthSpec = Field(AuthSpec(), description="Keys of clients and of the admin.")
    tls: TlsSpec | None = Field(None, description="TLS for clients of all listeners. When absent, plain HTTP.")
    service: GatewayServiceSpec = Field(GatewayServiceSpec(), description="How the gateway is reached.")
    resources: Resources = Field(
        Resources(),
        description="Compute of one router of this gateway. By default it requests 100m and 256Mi, with a limit of "
        "1Gi.",
    )
    flow_control: FlowControlSpec = Field(FlowControlSpec(), description="Bounds of the gateway.")
    access_log: bool = Field(
        False, description="Write a JSON line for each request to a router's standard output, without prompts and keys."
    )
    usage_log: bool = Field(
        False,
        description="Write JSON lines with what each tenant used of each model to a router's standard output, every "
        "ten seconds.",
    )
    tracing: TracingSpec | None = Field(
        None, description="Traces of requests. The spans of vLLM need tracing in the pool too. None when absent."
    )
    allowed_request_fields: tuple[RequestField, ...] = Field(
        (),
        strict=False,
        max_length=64,
        description="Request fields that routers let pass although they are dangerous or unknown.",
    )
    sort_tools: bool = Field(
        False,
        description="Sort the tools of each request by name, and the keys of their JSON, before the engine gets them. "
        "Clients that send them in changing order then keep their cached prefix.",
    )
    rules: ClassVar = (
        Rule(
            at="listeners",
            must="may not repeat a name or a port",
            cel=f"({entries_differ('listeners', 'name')}) && ({entries_differ('listeners', 'port')})",
            reads=("listeners",),
            holds=lambda spec: (
                len({listener.name for listener in spec.listeners})
                == len({listener.port for listener in spec.listeners})
                == len(spec.listeners)
            ),
        ),
        Rule(
            at="models",
            must="may not give one name to two models",
            cel=_NAMES_DIFFER,
            reads=("models",),
            holds=lambda spec: len(set(_names(spec.models))) == len(_names(spec.models)),
        ),
        Rule(
            at="models",
            must="may only fall back to the name of another model of this gateway",
            cel=_FALLBACKS_EXIST,
            reads=("models",),
            holds=_fallbacks_exist,
        ),
    )


class InferenceGatewayStatus(Struct):
    """The state of the gateway. The operator writes it."""

    model_config = ConfigDict(extra="ignore")  # the operator may be newer

    observed_generation: Generation = Field(0, description="The spec's generation that this status describes.")
    conditions: tuple[Condition, ...] = Field(
        (),
        strict=False,
        max_length=32,
        description="Ready, and the conditions that it depends on.",
        json_schema_extra={LIST_KEY: "type"},
    )
    replicas: Tally = Field(0, description="Routers that exist.")
    ready_replicas: Tally = Field(0, description="Routers that are ready.")
    selector: str = Field("", max_length=1024, description="Label selector of the pods, as a string, for /scale.")
    pools: tuple[Annotated[str, Field(max_length=253)], ...] = Field(
        (), strict=False, max_length=64, description="Pools that it serves.", json_schema_extra={LIST_KEY: ""}
    )
    addresses: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        (), strict=False, max_length=16, description="Where clients reach it."
    )


class InferenceGateway(Struct):
    """One address for several pools."""

    api_version: Literal["inference.plumage.dev/v1alpha1"] = Field(description="Group and version of this kind.")
    kind: Literal["InferenceGateway"] = Field(description="This kind.")
    metadata: ObjectMeta = Field(description="Name, namespace, labels, annotations.")
    spec: InferenceGatewaySpec = Field(description="The desired state of the gateway.")
    status: InferenceGatewayStatus = Field(
        InferenceGatewayStatus(), description="The state of the gateway. The operator writes it."
    )
    rules: ClassVar = (NAMES_SERVICES,)
