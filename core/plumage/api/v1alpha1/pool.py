"""`InferencePool`: the engines of one model, with router and directory."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from plumage import defaults
from plumage.api.v1alpha1.autoscaling import AutoscalingSpec, AutoscalingStatus
from plumage.api.v1alpha1.directory import DirectorySpec
from plumage.api.v1alpha1.engine import EngineSpec
from plumage.api.v1alpha1.exposure import MonitoringSpec, NetworkPolicySpec, TracingSpec
from plumage.api.v1alpha1.field_types import IntOrPercent, ObjectRef, Percent, Seconds
from plumage.api.v1alpha1.flow_control import PoolFlowControlSpec
from plumage.api.v1alpha1.metadata import NAMES_SERVICES, Condition, Generation, ObjectMeta, Tally
from plumage.api.v1alpha1.model import AdapterStatus, ModelSpec
from plumage.api.v1alpha1.quotas import QuotaSpec
from plumage.api.v1alpha1.router import RouterSpec
from plumage.api.v1alpha1.struct import LIST_KEY, Rule, Struct, named_once
from plumage.models import WITH_WEIGHTS

__all__ = ["InferencePool", "InferencePoolSpec", "InferencePoolStatus", "RolloutSpec"]


class RolloutSpec(Struct):
    """How replicas are replaced, and how long one that is deleted may finish its requests."""

    max_surge: IntOrPercent = Field(1, description="The most replicas above the wanted number during a rollout.")
    max_unavailable: IntOrPercent = Field(0, description="The most replicas below the wanted number during a rollout.")
    drain_timeout_seconds: Seconds = Field(
        defaults.DRAIN_SECONDS, description="Seconds in which requests of a replica may finish before it ends."
    )
    rules: ClassVar = (
        Rule(
            at="maxSurge",
            must="may not be 0 when maxUnavailable is 0: no replica could be replaced",
            cel="!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
            reads=("max_surge", "max_unavailable"),
            holds=lambda rollout: {rollout.max_surge, rollout.max_unavailable} - {0, "0%"} != set(),
        ),
    )


def _weights_exist(spec: Any) -> bool:
    built_in = spec.model.uri.startswith("builtin://") and spec.model.uri.rstrip("/") != WITH_WEIGHTS
    return not built_in or spec.engine.runtime == "Simulator" or spec.engine.external is not None


def _names_tenants(spec: Any) -> bool:
    return spec.flow_control is not None and any(one.tenants for one in spec.flow_control.classes)


def _is_published(router: RouterSpec) -> bool:
    return router.endpoint_picker is not None and router.endpoint_picker.inference_pool is not None


def _has_tenants(router: RouterSpec) -> bool:
    return router.gateway_ref is not None or router.auth.api_keys_ref is not None


class InferencePoolSpec(Struct):
    """The desired state of the pool."""

    model: ModelSpec = Field(description="The model that is served.")
    engine: EngineSpec = Field(EngineSpec(), description="The engine of each replica.")
    replicas: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        1,
        description="Number of replicas; /scale also sets it. With autoscaling it must be absent, or 1, the default "
        "that an API server fills in.",
    )
    autoscaling: AutoscalingSpec | None = Field(None, description="Scale the number of replicas by metrics.")
    router: RouterSpec = Field(RouterSpec(), description="The pool's router, or its gateway.")
    quotas: tuple[QuotaSpec, ...] = Field(
        (),
        strict=False,
        max_length=256,
        description="What each tenant may use. Tenants are those of router.auth.apiKeysRef, or of the gateway's keys.",
        json_schema_extra={LIST_KEY: "tenant"},
    )
    flow_control: PoolFlowControlSpec | None = Field(
        None,
        description="A queue for requests that no replica has room for. When absent, engines get all requests at once.",
    )
    directory: DirectorySpec = Field(
        DirectorySpec(), description="The server to which replicas publish their cached prefixes."
    )
    keys_ref: ObjectRef | None = Field(
        None,
        description="A Secret with the pool's own keys. engine-key: engines accept only requests with it. salt-key: it "
        "separates the caches of tenants. previous-engine-key: the old engine-key during a change. When absent, the "
        "operator makes a Secret.",
    )
    rollout: RolloutSpec = Field(RolloutSpec(), description="How replicas are replaced.")
    network_policy: NetworkPolicySpec = Field(NetworkPolicySpec(), description="Which pods may reach the pool's pods.")
    monitoring: MonitoringSpec = Field(MonitoringSpec(), description="PodMonitors for the Prometheus operator.")
    tracing: TracingSpec | None = Field(
        None,
        description="Traces of the router's requests, and vLLM's spans of them. Behind a gateway, the gateway's field "
        "decides which requests are traced. None when absent.",
    )
    rules: ClassVar = (
        Rule(
            at="replicas",
            must="must be absent, or 1, when autoscaling is set: autoscaling chooses the number",
            cel="!has(self.autoscaling) || !has(self.replicas) || self.replicas == 1",
            reads=("replicas", "autoscaling"),
            holds=lambda spec: spec.autoscaling is None or spec.replicas in (None, 1),
        ),
        Rule(
            at="autoscaling",
            must="may not be set with engine.external: the owner of the engines chooses how many",
            cel="!has(self.autoscaling) || !has(self.engine.external)",
            reads=("autoscaling", "engine"),
            holds=lambda spec: spec.autoscaling is None or spec.engine.external is None,
        ),
        Rule(
            at="replicas",
            must="must be absent, or 1, with engine.external: the owner of the engines chooses how many",
            cel="!has(self.engine.external) || !has(self.replicas) || self.replicas == 1",
            reads=("replicas", "engine"),
            holds=lambda spec: spec.engine.external is None or spec.replicas in (None, 1),
        ),
        Rule(
            at="model.adapters",
            must="must be absent with engine.external: no agent loads them or reports who has them",
            cel="!has(self.engine.external) || !has(self.model.adapters) || size(self.model.adapters) == 0",
            reads=("model", "engine"),
            holds=lambda spec: spec.engine.external is None or not spec.model.adapters,
        ),
        Rule(
            at="router.endpointPicker.inferencePool",
            must="may not be set with engine.external: name this picker in the InferencePool of the engines",
            cel="!has(self.engine.external) || !has(self.router) || !has(self.router.endpointPicker) || "
            "!has(self.router.endpointPicker.inferencePool)",
            reads=("router", "engine"),
            holds=lambda spec: spec.engine.external is None or not _is_published(spec.router),
        ),
        Rule(
            at="quotas",
            must="must be absent without tenants: set router.auth.apiKeysRef, or router.gatewayRef of a gateway with "
            "keys",
            cel="!has(self.quotas) || size(self.quotas) == 0 || (has(self.router) && (has(self.router.gatewayRef) || "
            "(has(self.router.auth) && has(self.router.auth.apiKeysRef))))",
            reads=("quotas", "router"),
            holds=lambda spec: not spec.quotas or _has_tenants(spec.router),
        ),
        Rule(
            at="flowControl",
            must="may not name tenants without keys: set router.auth.apiKeysRef, or router.gatewayRef of a gateway "
            "with keys",
            cel="!has(self.flowControl) || !has(self.flowControl.classes) || "
            "self.flowControl.classes.all(one, !has(one.tenants) || size(one.tenants) == 0) || (has(self.router) && "
            "(has(self.router.gatewayRef) || (has(self.router.auth) && has(self.router.auth.apiKeysRef))))",
            reads=("flow_control", "router"),
            holds=lambda spec: not _names_tenants(spec) or _has_tenants(spec.router),
        ),
        named_once("quotas", "a tenant", "tenant"),
        Rule(
            at="model.uri",
            must=f"may not be builtin:// with engine.runtime VLLM, except {WITH_WEIGHTS}: other models have no weights",
            cel="!self.model.uri.startsWith('builtin://') || self.engine.runtime == 'Simulator' || "
            f"has(self.engine.external) || self.model.uri.matches('^{WITH_WEIGHTS}/*$')",
            reads=("model", "engine"),
            holds=_weights_exist,
        ),
    )

    @property
    def initial_replicas(self) -> int:
        """Replicas to start with."""
        if self.autoscaling is not None:
            return self.autoscaling.min_replicas
        return 1 if self.replicas is None else self.replicas


class InferencePoolStatus(Struct):
    """The state of the pool. The operator writes it."""

    model_config = ConfigDict(extra="ignore")  # the operator may be newer

    observed_generation: Generation = Field(0, description="The spec's generation that this status describes.")
    conditions: tuple[Condition, ...] = Field(
        (),
        strict=False,
        max_length=32,
        description="Ready, and the conditions that it depends on.",
        json_schema_extra={LIST_KEY: "type"},
    )
    replicas: Tally = Field(0, description="Replicas that exist.")
    ready_replicas: Tally = Field(0, description="Replicas that are warm and serve.")
    updated_replicas: Tally = Field(0, description="Replicas of the current spec. The others are replaced.")
    desired_replicas: Tally = Field(0, description="Replicas that should exist.")
    proven_replicas: Tally | None = Field(
        None,
        description="The size that Ready is compared with while the pool grows or is broken: the most replicas that "
        "were ready since it served. Absent if it is the wanted size.",
    )
    selector: str = Field("", max_length=1024, description="Label selector of the pods, as a string, for /scale.")
    model: str = Field("", max_length=256, description="Name that clients ask for.")
    address: str = Field("", max_length=1024, description="Where clients in the cluster reach the pool.")
    adapters: tuple[AdapterStatus, ...] = Field(
        (),
        strict=False,
        max_length=64,
        description="The LoRA adapters of the model, and how many replicas serve each.",
        json_schema_extra={LIST_KEY: "name"},
    )
    hit_ratio_percent: Percent | None = Field(None, description="Cached ÷ all prompt tokens of the last minutes.")
    autoscaling: AutoscalingStatus | None = Field(
        None, description="The last decision of the autoscaler. Absent without one."
    )


class InferencePool(Struct):
    """A pool of engines for one model, with its router and directory."""

    api_version: Literal["inference.plumage.dev/v1alpha1"] = Field(description="Group and version of this kind.")
    kind: Literal["InferencePool"] = Field(description="This kind.")
    metadata: ObjectMeta = Field(description="Name, namespace, labels, annotations.")
    spec: InferencePoolSpec = Field(description="The desired state of the pool.")
    status: InferencePoolStatus = Field(
        InferencePoolStatus(), description="The state of the pool. The operator writes it."
    )
    rules: ClassVar = (NAMES_SERVICES,)
