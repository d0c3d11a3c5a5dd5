"""`spec.autoscaling`: the bounds of the pool's size, and the metrics that set it.

Names and behaviour are those of Kubernetes' HorizontalPodAutoscaler, if it has them: stabilization windows, policies,
tolerance. The defaults suit replicas that start slowly and have cold caches at first.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from plumage.api.v1alpha1.field_types import Percent, Seconds
from plumage.api.v1alpha1.metadata import Tally
from plumage.api.v1alpha1.struct import LIST_KEY, Rule, Struct, named_once

__all__ = [
    "AutoscalingSpec",
    "AutoscalingStatus",
    "BehaviorSpec",
    "MetricSpec",
    "MetricStatus",
    "MetricType",
    "ScaleDownRules",
    "ScaleUpRules",
    "ScalingPolicy",
    "ScalingRules",
    "target_of",
]

Replicas = Annotated[int, Field(ge=0, le=1000)]
Window = Annotated[int, Field(ge=0, le=3600)]
Amount = Annotated[int, Field(ge=0, le=2**53)]
MetricType = Literal[
    "CacheHitRatio",
    "TotalTokensPerSecond",
    "OutputTokensPerSecond",
    "TimeToFirstToken",
    "QueueWait",
    "KvCacheUsage",
    "RequestsInFlight",
]
Select = Literal["Max", "Min", "Disabled"]

_PERCENT = ("CacheHitRatio", "KvCacheUsage")
_MILLISECONDS = ("TimeToFirstToken", "QueueWait")
_AMOUNT = ("TotalTokensPerSecond", "OutputTokensPerSecond", "RequestsInFlight")


def _target(at: str, name: str, types: tuple[str, ...]) -> Rule:
    """The rule that a target is set for these types, and for no others."""
    return Rule(
        at=at,
        must=f"must be set for {', '.join(types[:-1])} and {types[-1]}, and absent for other types",
        reads=("type", name),
        holds=lambda metric: (metric.type in types) == (getattr(metric, name) is not None),
        cel=f"has(self.{at}) == (self.type in {list(types)})",
    )


class MetricSpec(Struct):
    """A metric and its target; each type has a target in its own unit."""

    type: MetricType = Field(
        description="The measured metric. CacheHitRatio: cached ÷ all prompt tokens. TotalTokensPerSecond: prompt "
        "tokens, including cached ones, and output tokens. OutputTokensPerSecond: only output tokens. "
        "TimeToFirstToken and QueueWait: the 95th percentile of the last minute. KvCacheUsage: KV "
        "blocks in use. RequestsInFlight: running and waiting requests."
    )
    target_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Target in percent: the least CacheHitRatio, or the highest KvCacheUsage."
    )
    target_milliseconds: Annotated[int, Field(ge=1, le=86_400_000)] | None = Field(
        None, description="Highest TimeToFirstToken or QueueWait, in milliseconds."
    )
    target: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None,
        description="Amount for one replica, on average; for TotalTokensPerSecond, OutputTokensPerSecond "
        "and RequestsInFlight.",
    )
    rules: ClassVar = (
        _target("targetPercent", "target_percent", _PERCENT),
        _target("targetMilliseconds", "target_milliseconds", _MILLISECONDS),
        _target("target", "target", _AMOUNT),
    )


def target_of(metric: MetricSpec) -> int:
    """The target of the metric: percent, milliseconds, or an amount for one replica, by its type."""
    held = (metric.target_percent, metric.target_milliseconds, metric.target)
    return next(target for target in held if target is not None)


class ScalingPolicy(Struct):
    """A bound of the change within a period."""

    type: Literal["Pods", "Percent"] = Field(description="Unit of value: replicas, or percent of the current replicas.")
    value: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="The most replicas that are added or deleted within the period."
    )
    period_seconds: Annotated[int, Field(ge=1, le=1800)] = Field(60, description="Length of the period.")


class ScalingRules(Struct):
    """Rules for changes of the pool's size in one direction. Base of both directions, which have their own defaults."""

    stabilization_window_seconds: Window
    select_policy: Select = Field(
        "Max",
        description="Which of several policies counts: the one that allows most (Max) or least (Min). Disabled: the "
        "size never changes in this direction.",
    )
    policies: tuple[ScalingPolicy, ...]
    tolerance_percent: Percent = Field(
        10, description="Distance from the target, in percent of it, within which a metric changes nothing."
    )


class ScaleUpRules(ScalingRules):
    """How the pool grows."""

    stabilization_window_seconds: Window = Field(
        0, description="Seconds of which the smallest proposal counts, so that a short peak changes nothing."
    )
    policies: tuple[ScalingPolicy, ...] = Field(
        (
            ScalingPolicy(type="Pods", value=4, periodSeconds=60),
            ScalingPolicy(type="Percent", value=100, periodSeconds=60),
        ),
        strict=False,
        min_length=1,
        max_length=8,
        description="The most replicas that are added within a period.",
    )


class ScaleDownRules(ScalingRules):
    """How the pool shrinks. The replica with the coldest cache is deleted first."""

    stabilization_window_seconds: Window = Field(
        300, description="Seconds of which the largest proposal counts, so that a short dip changes nothing."
    )
    policies: tuple[ScalingPolicy, ...] = Field(
        (ScalingPolicy(type="Pods", value=1, periodSeconds=60),),
        strict=False,
        min_length=1,
        max_length=8,
        description="The most replicas that are deleted within a period.",
    )


class BehaviorSpec(Struct):
    """How fast the size may change: up fast, down slowly, since a cold replica costs more than an idle one."""

    scale_up: ScaleUpRules = Field(ScaleUpRules(), description="How the pool grows.")
    scale_down: ScaleDownRules = Field(
        ScaleDownRules(), description="How the pool shrinks. The replica with the coldest cache is deleted first."
    )


class AutoscalingSpec(Struct):
    """Bounds of the pool's size, and the metrics that set it."""

    min_replicas: Replicas = Field(1, description="The fewest replicas. With 0 an unused pool scales to zero.")
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(description="The most replicas.")
    metrics: tuple[MetricSpec, ...] = Field(
        (MetricSpec(type="RequestsInFlight", target=32),),
        strict=False,
        min_length=1,
        max_length=8,
        json_schema_extra={LIST_KEY: "type"},
        description="Metrics. The one that asks for the most replicas counts.",
    )
    behavior: BehaviorSpec = Field(BehaviorSpec(), description="How fast the size may change.")
    idle_seconds: Seconds = Field(
        600,
        description="Seconds without a request after which a pool with minReplicas 0 scales to zero. The next request "
        "wakes it.",
    )
    dry_run: bool = Field(False, description="Decide and report, but change nothing.")
    rules: ClassVar = (
        Rule(
            at="minReplicas",
            must="may not be above maxReplicas",
            reads=("min_replicas", "max_replicas"),
            holds=lambda spec: spec.min_replicas <= spec.max_replicas,
            cel="self.minReplicas <= self.maxReplicas",
        ),
        named_once("metrics", "a type", "type"),
    )


class MetricStatus(Struct):
    """One metric at the last decision. Its unit is that of the target: percent, milliseconds, an amount per replica."""

    model_config = ConfigDict(extra="ignore")

    type: Annotated[str, Field(max_length=64)] = Field(description="The metric.")
    current: Amount | None = Field(None, description="Its value. Absent if missing or stale.")
    target: Amount = Field(0, description="Its target.")
    proposed_replicas: Tally | None = Field(
        None, description="Replicas that it asks for. Absent if it asks for no change."
    )
    message: str = Field("", max_length=1024, description="The reason, as text.")


class AutoscalingStatus(Struct):
    """The last decision of the autoscaler."""

    model_config = ConfigDict(extra="ignore")

    decision: str = Field("", max_length=4096, description="The decision and its reason, as text.")
    wanted_replicas: Tally | None = Field(
        None, description="Replicas that the metrics ask for, within the bounds. A dry run only reports it."
    )
    last_scale_time: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="When the size last changed (RFC 3339)."
    )
    metrics: tuple[MetricStatus, ...] = Field(
        (),
        strict=False,
        max_length=8,
        description="Each metric at this decision.",
        json_schema_extra={LIST_KEY: "type"},
    )
