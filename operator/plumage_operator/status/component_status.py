"""What the children say of a pool's parts: engines, routers, directory, and whether a rollout goes on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumage.cluster import COMPONENT_LABEL, Component
from plumage_operator.observed import Object, Observed, component_pods, meta, own_child
from plumage_operator.resources import CONFIG_HASH, ChildOwner, PoolContext
from plumage_operator.status.conditions import Condition, Reason, Status, Type, find_condition
from plumage_operator.status.diagnosis import Cause, diagnose, is_ready

__all__ = [
    "Counts",
    "counts",
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
    """Pods of a part, as its Deployment counts them. settled: the Deployment's controller has seen its last change."""

    wanted: int
    total: int
    ready: int
    updated: int
    settled: bool


def pods_of(observed: Observed, component: Component) -> list[Object]:
    """The pods of one part that are not being deleted."""
    return component_pods(observed.pods, component)


def counts(observed: Observed, context: ChildOwner, component: Component) -> Counts:
    """All zero while there is no Deployment."""
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
    """Ready once every wanted replica answers, be it an old or a new one; from then on, as long as enough do of those
    that were ready: a pool that grows serves as it did."""
    found, wanted = counts(observed, context, "engine"), context.replicas
    if wanted == 0 and found.total == 0:
        return Condition(Type.ENGINE_READY, "True", Reason.SCALED_TO_ZERO, "no replica is wanted")
    told = f"{found.ready} of {wanted} replicas are ready"
    if wanted and found.ready >= wanted:
        return Condition(Type.ENGINE_READY, "True", Reason.SERVING, told)
    reason, why = _lacking(observed, context)
    if found.ready < _least(observed, context):
        return Condition(Type.ENGINE_READY, "False", reason, told + why)
    passes = reason in (Reason.STARTING, Reason.WARMING)
    return Condition(Type.ENGINE_READY, "True", Reason.SERVING if passes else Reason.DEGRADED, told + why)


def _lacking(observed: Observed, context: PoolContext) -> tuple[Reason, str]:
    """Why not all replicas are ready: the reason, and how a sentence on their number goes on."""
    cause = _cause(observed, context, "engine")
    if cause is not None:
        return cause.reason, f". {cause.message}"
    warming = [pod for pod in pods_of(observed, "engine") if _engine_answers(pod) and not is_ready(pod)]
    return (
        (Reason.WARMING, f"; {len(warming)} are being warmed") if warming else (Reason.STARTING, "; the others start")
    )


def _was_ready(observed: Observed) -> bool:
    told = find_condition((observed.pool.get("status") or {}).get("conditions") or (), Type.ENGINE_READY)
    return told is not None and told.get("status") == "True"


def proven_replicas(observed: Observed) -> int:
    """The size that the pool was last ready with, by its status: 0 of one that never was, or slept. Where the status
    does not tell it, it is the size that the pool has."""
    status = observed.pool.get("status") or {}
    told = status.get("provenReplicas")
    return int(status.get("desiredReplicas", 0) if told is None and _was_ready(observed) else told or 0)


def _least(observed: Observed, context: PoolContext) -> int:
    """Replicas without which a pool is not called ready. vLLM loads for minutes: what is added counts from when it was
    ready, or each step up would be told as an outage. One that broke is well again with the size it was ready with."""
    proven = min(proven_replicas(observed), context.replicas)
    if not proven:
        return max(1, context.replicas)
    return _enough(proven, context.pool.spec.rollout.max_unavailable) if _was_ready(observed) else proven


def _enough(proven: int, unavailable: int | str) -> int:
    """One may be missing, as the disruption budget has it, or as many as a rollout takes away, and never all."""
    share = proven * int(unavailable.removesuffix("%")) // 100 if isinstance(unavailable, str) else unavailable
    return max(1, proven - max(1, share))


def router_condition(observed: Observed, context: PoolContext) -> Condition:
    """At least one router answers; without an own router, what there is to say of the gateway."""
    reference = context.pool.spec.router.gateway_ref
    if reference is not None:
        return _gateway(observed, reference.name)
    wanted = context.pool.spec.router.replicas
    return _served(Type.ROUTER_READY, observed, context, "router", wanted)


def _gateway(observed: Observed, name: str) -> Condition:
    """What the gateway's status says of the pool: it is written by this operator too, after the gateway's own look."""
    if observed.gateway is None:
        told = f"there is no InferenceGateway {name} in this namespace: create it, or remove spec.router.gatewayRef"
        return Condition(Type.ROUTER_READY, "False", Reason.GATEWAY_MISSING, told)
    said = {str(one.get("type")): one for one in (observed.gateway.get("status") or {}).get("conditions") or ()}
    accepted, routers = said.get(Type.ACCEPTED, {}), said.get(Type.ROUTER_READY, {})
    if not is_served(observed):
        why = accepted.get("message") or "its routers are being made"
        return Condition(
            Type.ROUTER_READY, "False", Reason.NOT_SERVED, f"InferenceGateway {name} does not serve it: {why}"
        )
    reason, message = str(routers.get("reason") or Reason.STARTING), str(routers.get("message") or "")
    status: Status = "True" if routers.get("status") == "True" else "False"
    return Condition(Type.ROUTER_READY, status, reason, f"InferenceGateway {name}: {message}")


def is_served(observed: Observed) -> bool:
    """Of a pool that refers to a gateway: does that one say that it serves it?"""
    status = (observed.gateway or {}).get("status") or {}
    return str(meta(observed.pool).get("name")) in (status.get("pools") or ())


def gateway_condition(observed: Observed, context: ChildOwner, wanted: int) -> Condition:
    """Of a gateway's own routers."""
    return _served(Type.ROUTER_READY, observed, context, "gateway", wanted)


def directory_condition(observed: Observed, context: PoolContext) -> Condition:
    """The managed one answers; of one that is referred to, its routers and agents tell."""
    if context.pool.spec.directory.redis_ref is not None:
        told = "the directory of spec.directory.redisRef; routers and agents tell in their metrics whether it answers"
        return Condition(Type.DIRECTORY_READY, "True", Reason.EXTERNAL, told)
    return _served(Type.DIRECTORY_READY, observed, context, "directory", 1)


def _served(type_: Type, observed: Observed, context: ChildOwner, component: Component, wanted: int) -> Condition:
    found = counts(observed, context, component)
    told = f"{found.ready} of {wanted} are ready"
    cause = _cause(observed, context, component) if found.ready < wanted else None
    if found.ready:
        reason = Reason.DEGRADED if cause and cause.reason is Reason.NODE_LOST else Reason.SERVING
        return Condition(type_, "True", reason, f"{told}. {cause.message}" if cause else told)
    if cause is not None:
        return Condition(type_, "False", cause.reason, cause.message)
    return Condition(type_, "False", Reason.STARTING, told)


def progress_condition(observed: Observed, context: PoolContext) -> Condition:
    """Whether the engines are on their way to what the spec says, and if they are stuck, on what."""
    found, wanted = counts(observed, context, "engine"), context.replicas
    replaced = min(found.updated, wanted)
    if not found.settled or (found.total == 0 and wanted):
        cause = _cause(observed, context, "engine")
        if cause is None or cause.passes:
            return _rolling(observed, context, replaced)
    if found.updated == found.total == found.ready == wanted:
        return Condition(Type.PROGRESSING, "False", Reason.SETTLED, f"all {wanted} replicas are as the spec says")
    cause = _cause(observed, context, "engine")
    if cause is not None and not cause.passes:
        if found.total == found.updated:
            rolled_out = _was_rolled_out(_deployment(observed, context, "engine"))
            told = f"{found.ready} of {wanted} replicas are ready, all as the spec says. {cause.message}"
            return Condition(Type.PROGRESSING, "False", Reason.DEGRADED if rolled_out else cause.reason, told)
        return _halted(found, cause)
    if found.total > found.updated:
        return _rolling(observed, context, replaced)
    why = f". {cause.message}" if cause is not None and cause.reason is Reason.NODE_LOST else ""
    return Condition(Type.PROGRESSING, "True", Reason.RESIZING, f"{found.ready} of {wanted} replicas are ready{why}")


def _rolling(observed: Observed, context: PoolContext, replaced: int) -> Condition:
    """A Deployment that somebody halted is put back, but not while the pool is paused."""
    halted = (_deployment(observed, context, "engine").get("spec") or {}).get("paused")
    name = context.name("engine")
    why = f". Deployment {name} is paused: kubectl rollout resume deployment {name}" if halted else ""
    told = f"{replaced} of {context.replicas} replicas are up to date{why}"
    return Condition(Type.PROGRESSING, "True", Reason.ROLLING_OUT, told)


def _was_rolled_out(deployment: Mapping[str, Any]) -> bool:
    """Its controller says so once all replicas of a template were there, and goes on saying so when some fail later."""
    told = find_condition((deployment.get("status") or {}).get("conditions") or (), "Progressing")
    return told is not None and told.get("reason") == "NewReplicaSetAvailable"


def _halted(found: Counts, cause: Cause) -> Condition:
    """Replicas of before are there, so that there is a rollout to halt: a new pool has none."""
    serving = f"the {found.total - found.updated} replicas of before serve on"
    told = f"new replicas do not become ready; {serving}. {cause.message}"
    return Condition(Type.PROGRESSING, "False", Reason.ROLLOUT_HALTED, told)


def _cause(observed: Observed, context: ChildOwner, component: Component) -> Cause | None:
    """Pods that are being deleted are looked at too: those of a lost node stay so until it is back."""
    deployment = _deployment(observed, context, component)
    pods = [pod for pod in observed.pods if (meta(pod).get("labels") or {}).get(COMPONENT_LABEL) == component]
    return diagnose(_newest_first(pods, deployment), deployment or None, observed.warnings, component)


def _newest_first(pods: Sequence[Object], deployment: Object) -> list[Object]:
    """Pods of the present template before older ones, so that the cause that holds a rollout up is told."""
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
