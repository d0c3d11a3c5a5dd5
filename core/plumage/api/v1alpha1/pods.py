"""The fields of a pod that a manifest may set: Kubernetes' own, by an allow-list."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage.api.v1alpha1.field_types import WORDS, ConfigMapKeyRef, MapKey, SecretKeyRef
from plumage.api.v1alpha1.struct import Rule, Struct
from plumage.quantity import Quantity, between

__all__ = ["OWNED_ENV", "EnvVar", "EnvVarSource", "Resources", "Toleration"]

ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
WORDS[ENV_NAME] = "letters, digits and '_', not beginning with a digit"


# Plumage sets these itself. Other variables that it sets are defaults: a user's value replaces them.
OWNED_ENV = ("PLUMAGE_VLLM", "POD_NAME", "VLLM_API_KEY")

Amount = Annotated[Quantity, between("0", "1E")]


class EnvVarSource(Struct):
    """Where an environment variable's value comes from: exactly one of the two."""

    secret_key_ref: SecretKeyRef | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: ConfigMapKeyRef | None = Field(None, description="A key of a ConfigMap.")
    rules: ClassVar = (
        Rule(
            at="",
            must="must set exactly one of secretKeyRef and configMapKeyRef",
            cel="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            reads=("secret_key_ref", "config_map_key_ref"),
            holds=lambda source: (source.secret_key_ref is None) != (source.config_map_key_ref is None),
        ),
    )


class EnvVar(Struct):
    """An environment variable of the engine's container."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=ENV_NAME)] = Field(description="Its name.")
    value: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="Its value. For secrets use valueFrom."
    )
    value_from: EnvVarSource | None = Field(None, description="Where its value comes from.")
    rules: ClassVar = (
        Rule(
            at="valueFrom",
            must="may not be set together with value",
            cel="!has(self.value) || !has(self.valueFrom)",
            reads=("value", "value_from"),
            holds=lambda variable: variable.value is None or variable.value_from is None,
        ),
        Rule(
            at="name",
            must="may not be set: Plumage sets it itself, from feather, eviction, hostMemory, batchLimit and keysRef",
            cel=f"!(self.name in {list(OWNED_ENV)})",
            reads=("name",),
            holds=lambda variable: variable.name not in OWNED_ENV,
        ),
    )


class Resources(Struct):
    """Compute of a container, as in a pod. Your value replaces the default. A default request is never above your
    limit."""

    requests: dict[MapKey, Amount] = Field({}, max_length=16, description="What the scheduler reserves.")
    limits: dict[MapKey, Amount] = Field(
        {}, max_length=16, description="What the container may use. GPUs belong here, e.g. nvidia.com/gpu: 1."
    )
    rules: ClassVar = (
        Rule(
            at="requests",
            must="may not be above limits",
            cel="!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
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

    key: Annotated[str, Field(max_length=317)] = Field("", description="Key of the taint. Empty matches all keys.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="How key and value are compared.")
    value: Annotated[str, Field(max_length=63)] = Field("", description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. When absent, all effects."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        None, description="Seconds for which a NoExecute taint is accepted."
    )
