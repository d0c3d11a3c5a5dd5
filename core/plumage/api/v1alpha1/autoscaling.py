"""`spec.autoscaling`: between which bounds, and on which signals, the pool's size follows its load."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage.api.v1alpha1.fields import Percent
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["AutoscalingSpec", "BehaviorSpec", "MetricSpec", "ScalingRules"]

Replicas = Annotated[int, Field(ge=0, le=1000)]
Stabilization = Annotated[int, Field(ge=0, le=3600)]


class MetricSpec(Struct):
    """One signal. A hit ratio is a percentage; the others are amounts for one replica."""

    type: Literal["CacheHitRatio", "TokensPerSecond", "RequestsInFlight"] = Field(
        description="What is measured: cached ÷ total prompt tokens, output tokens a second, requests in flight."
    )
    target_percent: Percent | None = Field(None, description="Hit ratio to hold; for CacheHitRatio only.")
    target: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Amount to hold for one replica; for TokensPerSecond and RequestsInFlight."
    )
    rules: ClassVar = (
        Rule(
            at="targetPercent",
            must="must be set, and target absent, for CacheHitRatio",
            reads=("type", "target", "target_percent"),
            holds=lambda metric: (
                metric.type != "CacheHitRatio" or (metric.target_percent is not None and metric.target is None)
            ),
        ),
        Rule(
            at="target",
            must="must be set, and targetPercent absent, for TokensPerSecond and RequestsInFlight",
            reads=("type", "target", "target_percent"),
            holds=lambda metric: (
                metric.type == "CacheHitRatio" or (metric.target is not None and metric.target_percent is None)
            ),
        ),
    )


class ScalingRules(Struct):
    """How fast the pool's size may change in one direction."""

    stabilization_seconds: Stabilization = Field(
        300, description="The mildest wish of this long a time counts, so that a short dip changes nothing."
    )
    max_replicas_per_minute: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Replicas that may come or go in a minute."
    )


class BehaviorSpec(Struct):
    """Up is quick, down is slow: a cold replica costs more than an idle one."""

    scale_up: ScalingRules = Field(
        ScalingRules(stabilizationSeconds=0, maxReplicasPerMinute=4), description="How the pool grows."
    )
    scale_down: ScalingRules = Field(ScalingRules(), description="How the pool shrinks; the coldest replica goes.")


class AutoscalingSpec(Struct):
    """Bounds and signals of the pool's size."""

    min_replicas: Replicas = Field(1, description="Fewest replicas; 0 lets an unused pool sleep.")
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(description="Most replicas.")
    metrics: tuple[MetricSpec, ...] = Field(
        (MetricSpec(type="RequestsInFlight", target=32),),
        strict=False,
        min_length=1,
        max_length=8,
        description="Signals; the one that wants most replicas counts.",
    )
    behavior: BehaviorSpec = Field(BehaviorSpec(), description="How fast the size may change.")
    dry_run: bool = Field(False, description="Decide and report, but change nothing.")
    rules: ClassVar = (
        Rule(
            at="minReplicas",
            must="may not be above maxReplicas",
            reads=("min_replicas", "max_replicas"),
            holds=lambda spec: spec.min_replicas <= spec.max_replicas,
        ),
        Rule(
            at="metrics",
            must="may not name a type twice",
            reads=("metrics",),
            holds=lambda spec: len({metric.type for metric in spec.metrics}) == len(spec.metrics),
        ),
    )
