"""Condition types, all reasons, and how a condition is set. Pure.

`Ready` summarizes the others, and `kubectl wait` waits for it. People write alerts on reasons, so no reason is renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

__all__ = ["Condition", "Reason", "Status", "Type", "seconds_of", "set_condition", "timestamp"]

Status = Literal["True", "False", "Unknown"]


class Type(StrEnum):
    """The types of conditions."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    ENGINE_READY = "EngineReady"
    ROUTER_READY = "RouterReady"
    DIRECTORY_READY = "DirectoryReady"
    PROGRESSING = "Progressing"
    ADAPTERS_READY = "AdaptersReady"
    PUBLISHED = "Published"
    SCALING = "Scaling"
    PAUSED = "Paused"


class Reason(StrEnum):
    """The reasons of conditions."""

    # Ready, EngineReady, RouterReady, DirectoryReady
    SERVING = "Serving"
    DEGRADED = "Degraded"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    WARMING = "Warming"
    EXTERNAL = "External"
    ENGINES_UNKNOWN = "EnginesUnknown"
    NO_ENGINE = "NoEngine"
    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    NAME_TAKEN = "NameTaken"
    NAMESPACE_ENDS = "NamespaceTerminating"
    CHILD_REFUSED = "ChildRefused"
    # A pool's gateway, and a gateway's pools
    GATEWAY_MISSING = "GatewayMissing"
    POOL_MISSING = "PoolMissing"
    POOL_NOT_ATTACHED = "PoolNotAttached"
    MODEL_CONFLICT = "ModelConflict"
    NO_POOL = "NoPool"
    NOT_SERVED = "NotServed"
    # Why pods are not ready
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CRASH_LOOP = "CrashLoop"
    NODE_LOST = "NodeLost"
    OUT_OF_MEMORY = "OutOfMemory"
    EVICTED = "Evicted"
    MISSING_SECRET = "MissingSecret"
    MISSING_CONFIG_MAP = "MissingConfigMap"
    MISSING_VOLUME_CLAIM = "MissingVolumeClaim"
    VOLUME_FAILED = "VolumeFailed"
    SANDBOX_FAILED = "SandboxFailed"
    CONTAINER_REFUSED = "ContainerRefused"
    MODEL_FAILED = "ModelFailed"
    NO_GPU = "NoGpu"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    NOT_READY_IN_TIME = "NotReadyInTime"
    # Progressing
    SETTLED = "Settled"
    ROLLING_OUT = "RollingOut"
    RESIZING = "Resizing"
    ROLLOUT_HALTED = "RolloutHalted"
    # AdaptersReady
    ADAPTERS_LOADED = "AdaptersLoaded"
    ADAPTER_LOADING = "AdapterLoading"
    ADAPTER_FAILED = "AdapterFailed"
    ADAPTERS_UNKNOWN = "AdaptersUnknown"
    # Published: a parent is a Gateway of the Gateway API
    PARENTS_ACCEPTED = "ParentsAccepted"
    PARENT_REFUSED = "ParentRefused"
    NO_PARENT = "NoParent"
    NOT_PUBLISHED = "NotPublished"
    # Scaling
    MANUAL = "Manual"
    AUTOSCALED = "Autoscaled"
    AUTOSCALER_UNKNOWN = "AutoscalerUnknown"
    # Paused
    PAUSED = "Paused"
    NOT_PAUSED = "NotPaused"


@dataclass(frozen=True, slots=True)
class Condition:
    """The present value of a condition. reason: one of `Reason`, or the autoscaler's."""

    type: Type
    status: Status
    reason: str
    message: str = ""


_LONGEST = 4_096  # characters of a message; those of a scheduler or a registry can be long


def set_condition(
    conditions: Sequence[Mapping[str, Any]], condition: Condition, generation: int, now: float
) -> tuple[dict[str, Any], ...]:
    """The conditions with `condition` in its place.

    lastTransitionTime changes only when the status changes. now: seconds since 1970.
    """
    before = _find(conditions, condition.type)
    flipped = before is None or before.get("status") != condition.status
    written = {
        "type": str(condition.type),
        "status": condition.status,
        "reason": str(condition.reason),
        "message": condition.message[:_LONGEST],
        "observedGeneration": generation,
        "lastTransitionTime": timestamp(now) if flipped or before is None else before.get("lastTransitionTime", ""),
    }
    if before is None:
        return (*map(dict, conditions), written)
    return tuple(written if one.get("type") == condition.type else dict(one) for one in conditions)


def _find(conditions: Sequence[Mapping[str, Any]], type_: str) -> Mapping[str, Any] | None:
    """The condition of that type, or None."""
    return next((one for one in conditions if one.get("type") == type_), None)


def seconds_of(timestamp: str) -> float | None:
    """Seconds since 1970 of a Kubernetes timestamp; None if it is not one."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def timestamp(now: float) -> str:
    """RFC 3339 with whole seconds, as Kubernetes writes it."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
