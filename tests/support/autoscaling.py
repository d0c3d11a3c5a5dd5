"""Pool loads for tests of the autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plumage.api.v1alpha1.autoscaling import AutoscalingSpec
from plumage.autoscaling import PoolLoad, ReplicaLoad
from plumage.mrc import MissRatioCurve

KNEE = MissRatioCurve([0, 1000, 4000, 100_000], [0.0, 0.2, 0.8, 0.8], 1e6)
"""Rises up to 4,000 tokens, and is constant beyond."""


def spec_of(*metrics: dict[str, Any], least: int = 1, most: int = 100, **more: Any) -> AutoscalingSpec:
    data = {"minReplicas": least, "maxReplicas": most, "metrics": list(metrics), **more}
    return AutoscalingSpec.model_validate(data)


def free(up: int = 0, down: int = 0) -> dict[str, Any]:
    """Scaling behaviour without effective rate limits. Its windows are this many seconds long."""
    policies = [{"type": "Pods", "value": 1000, "periodSeconds": 1}]
    return {
        "scaleUp": {"stabilizationWindowSeconds": up, "policies": policies},
        "scaleDown": {"stabilizationWindowSeconds": down, "policies": policies},
    }


def pool(
    values: Sequence[float | None], *, at: float = 0.0, unready: int = 0, warming: int = 0, **more: Any
) -> PoolLoad:
    """Ready replicas. Each has this many tokens a second and running requests, and uses a hundredth of its KV cache for
    each."""
    replicas = [
        ReplicaLoad(
            id=f"r{number}",
            seen=at,
            total_tokens_per_second=value,
            in_flight=value,
            kv_usage=None if value is None else value / 100,
        )
        for number, value in enumerate(values)
    ]
    replicas += [ReplicaLoad(id=f"u{number}", ready=False) for number in range(unready)]
    replicas += [ReplicaLoad(id=f"w{number}", ready=False, warming=True) for number in range(warming)]
    load: dict[str, Any] = {"wanted": len(replicas), "seen": at, "arrivals": 1, "in_flight": 1, "waiting": 0, **more}
    return PoolLoad(replicas=tuple(replicas), **load)
