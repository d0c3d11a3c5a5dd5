"""`spec.engine`: the engine of each replica. Creating one is creating a pod, so its fields are an allow-list."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from plumage.api.v1alpha1.cache import EvictionSpec, HostMemorySpec
from plumage.api.v1alpha1.feather import FeatherSpec
from plumage.api.v1alpha1.fields import (
    WORDS,
    ConfigMapKeyRef,
    FreeForm,
    Label,
    ObjectRef,
    SecretKeyRef,
    StringMap,
    Subdomain,
    Text,
)
from plumage.api.v1alpha1.quantity import Quantity
from plumage.api.v1alpha1.simulator import SimulatorSpec
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["OWNED_ARGS", "EngineSpec", "EnvVar", "EnvVarSource", "Resources", "Toleration"]

ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
WORDS[ENV_NAME] = "letters, digits and '_', not beginning with a digit"
# Plumage sets these itself: a second value would break routing, the directory or the drain.
OWNED_ARGS = (
    "--additional-config", "--api-key", "--enable-force-include-usage", "--enable-prompt-tokens-details", "--host",
    "--kv-events-config", "--kv-transfer-config", "--model", "--port", "--scheduler-cls", "--served-model-name",
    "--shutdown-timeout", "--uds",
)  # fmt: skip


class EnvVarSource(Struct):
    """Where an environment variable's value comes from: exactly one of the two."""

    secret_key_ref: SecretKeyRef | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: ConfigMapKeyRef | None = Field(None, description="A key of a ConfigMap.")
    rules: ClassVar = (
        Rule(
            at="",
            must="must set exactly one of secretKeyRef and configMapKeyRef",
            reads=("secret_key_ref", "config_map_key_ref"),
            holds=lambda source: (source.secret_key_ref is None) != (source.config_map_key_ref is None),
        ),
    )


class EnvVar(Struct):
    """An environment variable of the engine's container."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=ENV_NAME)] = Field(description="Its name.")
    value: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="Its value; secrets go by valueFrom."
    )
    value_from: EnvVarSource | None = Field(None, description="Where its value comes from.")
    rules: ClassVar = (
        Rule(
            at="valueFrom",
            must="may not be set together with value",
            reads=("value", "value_from"),
            holds=lambda variable: variable.value is None or variable.value_from is None,
        ),
    )


class Resources(Struct):
    """Compute of one replica, as in a pod."""

    requests: dict[Annotated[str, Field(max_length=317)], Quantity] = Field(
        {}, max_length=16, description="What the scheduler reserves."
    )
    limits: dict[Annotated[str, Field(max_length=317)], Quantity] = Field(
        {}, max_length=16, description="What the container may use; GPUs go here, e.g. nvidia.com/gpu: 1."
    )
    rules: ClassVar = (
        Rule(
            at="requests",
            must="may not be above limits",
            reads=("requests", "limits"),
            holds=lambda resources: all(
                amount.value <= resources.limits[name].value
                for name, amount in resources.requests.items()
                if name in resources.limits
            ),
        ),
    )


class Toleration(Struct):
    """A taint that the pool's pods accept."""

    key: Annotated[str, Field(max_length=317)] = Field("", description="Key of the taint; empty matches all keys.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="How key and value are compared.")
    value: Annotated[str, Field(max_length=63)] = Field("", description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; all effects when absent."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        None, description="How long a NoExecute taint is accepted."
    )


def _owned_args_left_alone(engine: Any) -> bool:
    return not any(arg.split("=", 1)[0] in OWNED_ARGS for arg in engine.args)


def _host_memory_fits(engine: Any) -> bool:
    limit = engine.resources.limits.get("memory")
    if limit is None or engine.host_memory is None or engine.host_memory.capacity is None:
        return True
    return bool(engine.host_memory.capacity.value < limit.value)


class EngineSpec(Struct):
    """What runs in each replica."""

    runtime: Literal["VLLM", "Simulator"] = Field("VLLM", description="vLLM, or an engine that only plays one.")
    image: Text | None = Field(None, description="Container image; the operator's own for the runtime when absent.")
    args: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        (), strict=False, max_length=64, description="Further arguments for vLLM; those that Plumage sets are refused."
    )
    env: tuple[EnvVar, ...] = Field((), strict=False, max_length=64, description="Further environment variables.")
    resources: Resources = Field(Resources(), description="Compute of one replica.")
    feather: FeatherSpec = Field(FeatherSpec(), description="Batching by shared prefix.")
    eviction: EvictionSpec = Field(EvictionSpec(), description="Which KV blocks go first.")
    host_memory: HostMemorySpec | None = Field(None, description="Host memory as a second tier; off when absent.")
    batch_limit: Literal["Adaptive", "Static"] = Field(
        "Adaptive",
        description="Shrink the running batch when requests are preempted for want of KV blocks and let it grow again "
        "below 95 % of KV use, or leave it at its maximum.",
    )
    simulator: SimulatorSpec = Field(SimulatorSpec(), description="Size and speed of a simulated engine.")
    node_selector: StringMap = Field({}, max_length=64, description="Labels that a node must have.")
    tolerations: tuple[Toleration, ...] = Field((), strict=False, max_length=32, description="Taints accepted.")
    affinity: FreeForm = Field({}, max_length=3, description="A pod's affinity, handed on as it is.")
    topology_spread_constraints: tuple[FreeForm, ...] = Field(
        (), strict=False, max_length=16, description="A pod's topology spread constraints, handed on as they are."
    )
    priority_class_name: Subdomain | None = Field(None, description="Priority class of the pods.")
    runtime_class_name: Subdomain | None = Field(None, description="Runtime class of the pods.")
    scheduler_name: Label | None = Field(None, description="Scheduler of the pods.")
    service_account_name: Subdomain | None = Field(None, description="Service account of the pods.")
    image_pull_secrets: tuple[ObjectRef, ...] = Field(
        (), strict=False, max_length=16, description="Secrets to pull images with."
    )
    rules: ClassVar = (
        Rule(
            at="args",
            must=f"may not set what Plumage sets itself ({', '.join(OWNED_ARGS)})",
            reads=("args",),
            holds=_owned_args_left_alone,
        ),
        Rule(
            at="env",
            must="may not name a variable twice",
            reads=("env",),
            holds=lambda engine: len({variable.name for variable in engine.env}) == len(engine.env),
        ),
        Rule(
            at="hostMemory.capacity",
            must="must be below resources.limits.memory",
            reads=("resources", "host_memory"),
            holds=_host_memory_fits,
        ),
        Rule(
            at="simulator",
            must="may not be set with runtime VLLM",
            reads=("runtime", "simulator"),
            holds=lambda engine: engine.runtime == "Simulator" or "simulator" not in engine.model_fields_set,
        ),
        Rule(
            at="args",
            must="may not be set with runtime Simulator: its settings are under simulator",
            reads=("runtime", "args"),
            holds=lambda engine: engine.runtime == "VLLM" or not engine.args,
        ),
    )
