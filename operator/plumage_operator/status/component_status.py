"""Conditions of a pool's components: engines, routers, directory, and the progress of a rollout. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumage.cluster import COMPONENT_LABEL, Component
from plumage_operator.observed import Object, Observed, component_pods, condition_of, meta, own_child
from plumage_operator.resources import CONFIG_HASH, ChildOwner, PoolContext
from plumage_operator.status.conditions import Condition, Reason, Status, Type
from plumage_operator.status.diagnosis import Cause, diagnose, is_ready
from plumage_operator.status.external_engines import external_engine_condition, external_progress_condition

__all__ = [
    "Counts",
    "count_replicas",
    "directory_condition",
    "engine_condition",
    "gateway_condition",
    "is_served",
    "pods_of",
    "progress_condition",
    "proven_replicas",
    "router_condition",
]


@dataclass(frozen=True, slots=True)
class Counts:
    """Pods of a component, as its Deployment counts them.

    settled: the Deployment controller has seen the last change.
    """

    wanted: int
    total: int
    ready: int
    updated: int
    settled: bool


def pods_of(observed: Observed, component: Component) -> list[Object]:
    """The pods of a component that are not being deleted."""
    return component_pods(observed.pods, component)


def count_replicas(observed: Observed, context: ChildOwner, component: Component) -> Counts:
    """The replicas of a component; all zero while there is no Deployment."""
    deployment = _deployment(observed, context, component)
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    return Counts(
        wanted=int(spec.get("replicas", 1)) if deployment else 0,
        total=int(status.get("replicas", 0)),
        ready=int(status.get("readyReplicas", 0)),
        updated=int(status.get("updatedReplicas", 0)),
        settled=bool(deployment) and status.get("observedGeneration", 0) >= meta(deployment).get("generation", 1),
    )


def engine_condition(observed: Observed, context: PoolContext) -> Condition:
    """Ready once every wanted replica is ready, be it an old or a new one.

    Afterwards it stays ready as long as enough of those replicas are ready: a pool that grows serves as before.
    """
    if context.pool.spec.engine.external is not None:
        return external_engine_condition(observed, context)
    found, wanted = count_replicas(observed, context, "engine"), context.replicas
    if wanted == 0 and found.total == 0:
        return Condition(Type.ENGINE_READY, "True", Reason.SCALED_TO_ZERO, "no replica is wanted")
    ready = f"{found.ready} of {wanted} replicas are ready"
    if wanted and found.ready >= wanted:
        return Condition(Type.ENGINE_READY, "True", Reason.SERVING, ready)
    reason, why = _why_not_ready(observed, context)
    if found.ready < _required_ready(observed, context):
        return Condition(Type.ENGINE_READY, "False", reason, ready + why)
    transient = reason in (Reason.STARTING, Reason.WARMING)
    return Condition(Type.ENGINE_READY, "True", Reason.SERVING if transient else Reason.DEGRADED, ready + why)


def _why_not_ready(observed: Observed, context: PoolContext) -> tuple[Reason, str]:
    """Why not all replicas are ready: the reason, and the end of the message."""
    cause = _cause(observed, context, "engine")
    if cause is not None:
        return cause.reason, f". {cause.message}"
    warming = [pod for pod in pods_of(observed, "engine") if _engine_answers(pod) and not is_ready(pod)]
    return (
        (Reason.WARMING, f"; {len(warming)} are being warmed")
        if warming
        else (Reason.STARTING, "; the others are starting")
    )


def _was_ready(observed: Observed) -> bool:
    return bool(condition_of(observed.pool, Type.ENGINE_READY).get("status") == "True")


def proven_replicas(observed: Observed) -> int:
    """The size that the pool was last ready with, by its status; 0 if it never was, or slept.

    Where the status does not have it, it is the size that the pool has.
    """
    status = observed.pool.get("status") or {}
    proven = status.get("provenReplicas")
    return int(status.get("desiredReplicas", 0) if proven is None and _was_ready(observed) else proven or 0)


def _required_ready(observed: Observed, context: PoolContext) -> int:
    """Ready replicas without which a pool is not Ready.

    vLLM loads for minutes, so an added replica counts only from when it was ready. Otherwise each step up would look
    like an outage. A broken pool is ready again with the size that it was last ready with.
    """
    proven = min(proven_replicas(observed), context.replicas)
    if not proven:
        return max(1, context.replicas)
    return _enough(proven, context.pool.spec.rollout.max_unavailable) if _was_ready(observed) else proven


def _enough(proven: int, unavailable: int | str) -> int:
    """Replicas that suffice: all but one or maxUnavailable; at least one."""
    share = proven * int(unavailable.removesuffix("%")) // 100 if isinstance(unavailable, str) else unavailable
    return max(1, proven - max(1, share))


def router_condition(observed: Observed, context: PoolContext) -> Condition:
    """At least one router is ready. A pool without own routers reports the state of its gateway."""
    reference = context.pool.spec.router.gateway_ref
    if reference is not None:
        return _gateway(observed, reference.name)
    wanted = context.pool.spec.router.replicas
    return _served(Type.ROUTER_READY, observed, context, "router", wanted)


def _gateway(observed: Observed, name: str) -> Condition:
    """The state of the pool in the gateway's status. This operator writes it, after the gateway's own reconcile."""
    if observed.gateway is None:
        message = f"there is no InferenceGateway {name} in this namespace: create it, or remove spec.router.gatewayRef"
        return Condition(Type.ROUTER_READY, "False", Reason.GATEWAY_MISSING, message)
    accepted, routers = condition_of(observed.gateway, Type.ACCEPTED), condition_of(observed.gateway, Type.ROUTER_READY)
    if not is_served(observed):
        why = accepted.get("message") or "its routers are being created"
        return Condition(
            Type.ROUTER_READY, "False", Reason.NOT_SERVED, f"InferenceGateway {name} does not serve it: {why}"
        )
    reason, message = str(routers.get("reason") or Reason.STARTING), str(routers.get("message") or "")
    status: Status = "True" if routers.get("status") == "True" else "False"
    return Condition(Type.ROUTER_READY, status, reason, f"InferenceGateway {name}: {message}")


def is_served(observed: Observed) -> bool:
    """Whether the gateway that the pool refers to reports that it serves the pool."""
    status = (observed.gateway or {}).get("status") or {}
    return str(meta(observed.pool).get("name")) in (status.get("pools") or ())


def gateway_condition(observed: Observed, context: ChildOwner, wanted: int) -> Condition:
    """A gateway's own routers."""
    return _served(Type.ROUTER_READY, observed, context, "gateway", wanted)


def directory_condition(observed: Observed, context: PoolContext) -> Condition:
    """The managed directory is ready. The routers and agents report on an external one."""
    if context.pool.spec.directory.redis_ref is not None:
        message = "the directory of spec.directory.redisRef; metrics of routers and agents show whether it answers"
        return Condition(Type.DIRECTORY_READY, "True", Reason.EXTERNAL, message)
    return _served(Type.DIRECTORY_READY, observed, context, "directory", 1)


def _served(type_: Type, observed: Observed, context: ChildOwner, component: Component, wanted: int) -> Condition:
    found = count_replicas(observed, context, component)
    ready = f"{found.ready} of {wanted} are ready"
    cause = _cause(observed, context, component) if found.ready < wanted else None
    if found.ready:
        reason = Reason.DEGRADED if cause and cause.reason is Reason.NODE_LOST else Reason.SERVING
        return Condition(type_, "True", reason, f"{ready}. {cause.message}" if cause else ready)
    if cause is not None:
        return Condition(type_, "False", cause.reason, cause.message)
    return Condition(type_, "False", Reason.STARTING, ready)


def progress_condition(observed: Observed, context: PoolContext) -> Condition:
    """Whether the engines are on their way to the spec, and if they are stuck, why."""
    if context.pool.spec.engine.external is not None:
        return external_progress_condition()
    found, wanted = count_replicas(observed, context, "engine"), context.replicas
    replaced = min(found.updated, wanted)
    if not found.settled or (found.total == 0 and wanted):
        cause = _cause(observed, context, "engine")
        if cause is None or cause.transient:
            return _rolling(observed, context, replaced)
    if found.updated == found.total == found.ready == wanted:
        return Condition(Type.PROGRESSING, "False", Reason.SETTLED, f"all {wanted} replicas are as the spec says")
    cause = _cause(observed, context, "engine")
    if cause is not None and not cause.transient:
        if found.total == found.updated:
            rolled_out = _was_rolled_out(_deployment(observed, context, "engine"))
            message = f"{found.ready} of {wanted} replicas are ready, all as the spec says. {cause.message}"
            return Condition(Type.PROGRESSING, "False", Reason.DEGRADED if rolled_out else cause.reason, message)
        return _halted(found, cause)
    if found.total > found.updated:
        return _rolling(observed, context, replaced)
    why = f". {cause.message}" if cause is not None and cause.reason is Reason.NODE_LOST else ""
    return Condition(Type.PROGRESSING, "True", Reason.RESIZING, f"{found.ready} of {wanted} replicas are ready{why}")


def _rolling(observed: Observed, context: PoolContext, replaced: int) -> Condition:
    """The operator resumes a Deployment that somebody paused, but not while the pool is paused."""
    halted = (_deployment(observed, context, "engine").get("spec") or {}).get("paused")
    name = context.name("engine")
    why = f". Deployment {name} is paused: kubectl rollout resume deployment {name}" if halted else ""
    message = f"{replaced} of {context.replicas} replicas are up to date{why}"
    return Condition(Type.PROGRESSING, "True", Reason.ROLLING_OUT, message)


def _was_rolled_out(deployment: Mapping[str, Any]) -> bool:
    """The Deployment controller says so once all replicas of a template existed, and still when some fail later."""
    return bool(condition_of(deployment, "Progressing").get("reason") == "NewReplicaSetAvailable")


def _halted(found: Counts, cause: Cause) -> Condition:
    """Replicas of the previous template exist, so that there is a rollout to halt. A new pool has none."""
    serving = f"the {found.total - found.updated} previous replicas still serve"
    message = f"new replicas do not become ready; {serving}. {cause.message}"
    return Condition(Type.PROGRESSING, "False", Reason.ROLLOUT_HALTED, message)


def _cause(observed: Observed, context: ChildOwner, component: Component) -> Cause | None:
    """Pods that are being deleted count too: those of a lost node stay until it is back."""
    deployment = _deployment(observed, context, component)
    pods = [pod for pod in observed.pods if (meta(pod).get("labels") or {}).get(COMPONENT_LABEL) == component]
    return diagnose(_newest_first(pods, deployment), deployment or None, observed.warnings, component)


def _newest_first(pods: Sequence[Object], deployment: Object) -> list[Object]:
    """Pods of the present template first, because their cause blocks the rollout."""
    template = ((deployment.get("spec") or {}).get("template") or {}).get("metadata") or {}
    now = (template.get("annotations") or {}).get(CONFIG_HASH)
    return sorted(pods, key=lambda pod: ((meta(pod).get("annotations") or {}).get(CONFIG_HASH) != now, _name(pod)))


def _deployment(observed: Observed, context: ChildOwner, component: Component) -> Mapping[str, Any]:
    return own_child(observed, ("Deployment", context.name(component))) or {}


def _engine_answers(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(status.get("name") == "engine" and status.get("ready") for status in statuses)


def _name(pod: Object) -> str:
    return str(meta(pod).get("name", ""))
