"""`plan(observed, config, now) → actions`: all decisions about a pool. Pure.

The plan is level-based: it depends on the present state and never on past events. So a plan that was interrupted is
simply made again. An object that is as it should be gets no action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from plumage.autoscaling import DELETION_COST
from plumage.cluster import child_name
from plumage_operator.config import OperatorConfig
from plumage_operator.controller.actions import Action, Annotate, Apply, CreateSecret, Delete, EmitEvent, WriteStatus
from plumage_operator.controller.drift import drift
from plumage_operator.kinds import KINDS
from plumage_operator.observed import (
    ChildKey,
    Object,
    Observed,
    condition_of,
    external_of,
    key_of,
    meta,
    own_child,
    owner_uid,
    status_of,
)
from plumage_operator.resources import (
    APPLIED,
    Child,
    PoolContext,
    build_children,
    build_key_secret,
    config_with_cordons,
)
from plumage_operator.resources.context import cordoned_replicas, is_deleting, is_paused, read_pool_context
from plumage_operator.resources.settings import KEY_ENTRIES
from plumage_operator.status.conditions import Condition, Reason, Type
from plumage_operator.status.diagnosis import stuck_pods
from plumage_operator.status.pool_status import (
    invalid_conditions,
    is_worth_writing,
    last_condition,
    make_status,
    pool_conditions,
)

__all__ = [
    "condition_events",
    "delete_unwanted",
    "ensure_child",
    "plan",
    "plan_changes",
    "plan_key_secret",
    "plan_status",
]

_EVENT_CONDITIONS: Final = (Type.READY, Type.PROGRESSING, Type.ADAPTERS_READY, Type.PAUSED)
"""Conditions whose changes are events. The others repeat these, or are for programs."""


def plan(observed: Observed, config: OperatorConfig, now: float) -> tuple[Action, ...]:
    """All actions, in order. now: seconds since 1970."""
    return (*plan_changes(observed, config), *plan_status(observed, config, now))


def plan_changes(observed: Observed, config: OperatorConfig) -> tuple[Action, ...]:
    """Makes the cluster as the spec says. A paused pool gets only the cordons of its pods.

    Nothing for a pool that is being deleted: the garbage collector deletes its children, and their pods drain.
    """
    if is_deleting(observed.pool):
        return ()
    context, mistakes = read_pool_context(observed, config)
    if context is None or mistakes:
        return ()
    return tuple(_cordons(observed, context) if is_paused(observed.pool) else _changes(observed, context))


def plan_key_secret(observed: Observed, config: OperatorConfig, *, recently: bool = False) -> tuple[Action, ...]:
    """Creates the Secret with the pool's keys where it may be missing.

    That is before the first engines exist, and while pods wait for their volumes. The operator can't read Secrets, so
    it does not know whether the Secret exists. recently: it was created or found a moment ago, so pods wait for another
    reason.
    """
    if is_deleting(observed.pool) or is_paused(observed.pool):
        return ()
    kind = "Deployment" if external_of(observed.pool) is None else "Service"
    engines = own_child(observed, (kind, child_name(str(meta(observed.pool).get("name")), "engine")))
    if engines is not None and (recently or not stuck_pods((*observed.pods, *observed.gateway_pods))):
        return ()
    context, mistakes = read_pool_context(observed, config)
    if context is None or mistakes or context.pool.spec.keys_ref is not None:
        return ()
    return (CreateSecret(build_key_secret(context), KEY_ENTRIES),)


def plan_status(observed: Observed, config: OperatorConfig, now: float) -> tuple[Action, ...]:
    """Events about the pool, then its status. now: seconds since 1970."""
    if is_deleting(observed.pool):
        return ()
    paused = is_paused(observed.pool)
    context, mistakes = read_pool_context(observed, config)
    if context is None or mistakes:
        return tuple(_status_actions(observed, invalid_conditions(mistakes, paused=paused), None, now))
    return tuple(_status_actions(observed, pool_conditions(observed, context, paused=paused), context, now))


def _changes(observed: Observed, context: PoolContext) -> Iterator[Action]:
    wanted = build_children(context, cordoned_replicas(observed.pods))
    yield from _deletion_costs(observed)
    for child in wanted:
        yield from ensure_child(observed, child)
    yield from delete_unwanted(observed, {key_of(child) for child in wanted})


def _cordons(observed: Observed, context: PoolContext) -> Iterator[Action]:
    """A cordon applies also to a paused pool: people set it on a pod. A gateway's own reconcile writes its cordons."""
    live = observed.children.get(("ConfigMap", context.name("router")))
    if live is None or owner_uid(live) != meta(observed.pool).get("uid"):
        return
    child = config_with_cordons(context, live, cordoned_replicas(observed.pods))
    if context.pool.spec.router.gateway_ref is None and child["data"] != live.get("data"):
        yield Apply(child, known=True)


def _deletion_costs(observed: Observed) -> Iterator[Action]:
    """Written before the Deployment shrinks: the ReplicaSet reads them to choose the pods to delete."""
    costs: Mapping[str, int] = {} if observed.scaling is None else observed.scaling.deletion_costs
    for pod in observed.pods:
        name, annotations = str(meta(pod).get("name")), meta(pod).get("annotations") or {}
        if name in costs and annotations.get(DELETION_COST) != str(costs[name]):
            yield Annotate(name, {DELETION_COST: str(costs[name])})


def ensure_child(observed: Observed, child: Child) -> Iterator[Action]:
    """Creates or corrects the child; no action where it is as it should be."""
    key = key_of(child)
    live = observed.children.get(key)
    if live is None:
        yield Apply(child, known=False)
        if _existed(observed, key):
            yield EmitEvent("Normal", "ChildRecreated", f"{key[0]} {key[1]} was deleted and is created again", key)
        return
    if (owner := owner_uid(live)) not in ("", meta(observed.pool).get("uid")):
        yield Apply(child, known=False)  # it belonged to another pool of that name: the performer checks, and refuses
        return
    applied = (meta(live).get("annotations") or {}).get(APPLIED)
    paths = drift(child, live)
    unchanged = applied == child["metadata"]["annotations"][APPLIED] and owner
    if unchanged and not paths:
        return
    yield Apply(child, known=bool(owner))
    if unchanged:
        message = f"{key[0]} {key[1]} was changed ({', '.join(paths)}) and is restored"
        yield EmitEvent("Warning", "ChildRepaired", message, key)


def delete_unwanted(observed: Observed, wanted: set[ChildKey]) -> Iterator[Action]:
    """Deletes children that the spec no longer asks for. Objects of other owners are left alone."""
    for key, live in sorted(observed.children.items()):
        ours = owner_uid(live) == meta(observed.pool).get("uid")
        if key not in wanted and key[0] in KINDS and ours and "deletionTimestamp" not in meta(live):
            yield Delete(key[0], key[1], str(meta(live).get("uid", "")))


def _existed(observed: Observed, key: ChildKey) -> bool:
    """Whether somebody deleted the missing child: it existed, and the present spec was fully applied once.

    A child that never existed is new in this operator's version, or was deleted while no operator ran.
    """
    status = status_of(observed.pool)
    applied = status.get("observedGeneration") == meta(observed.pool).get("generation")
    return (
        key in observed.lost_children and applied and bool(condition_of(observed.pool, Type.ROUTER_READY).get("reason"))
    )


def _status_actions(
    observed: Observed, conditions: Sequence[Condition], context: PoolContext | None, now: float
) -> Iterator[Action]:
    """Events come before the status: a crash between them repeats an event, which is counted, and loses none."""
    status: dict[str, Any] = make_status(observed, conditions, context, now)
    if is_worth_writing(status_of(observed.pool), status):
        yield from condition_events(observed, conditions)
        yield from _resized(observed, status)
        yield WriteStatus(status)


def condition_events(observed: Observed, conditions: Sequence[Condition]) -> Iterator[Action]:
    """Events of the conditions that changed since the last events."""
    for condition in conditions:
        if condition.type in _EVENT_CONDITIONS and _is_new(observed, condition):
            yield EmitEvent(_kind(condition), condition.reason, condition.message or str(condition.type))


def _last_reported(observed: Observed) -> Object:
    """The pool with the status that its events reported last: its own, or the one that the API server refused."""
    return observed.pool if observed.refused_status is None else {**observed.pool, "status": observed.refused_status}


def _resized(observed: Observed, status: Mapping[str, Any]) -> Iterator[Action]:
    """The autoscaler's message where the reported size changes to the autoscaler's.

    People may give a paused pool another size.
    """
    decision, now = observed.scaling, status.get("desiredReplicas")
    before = status_of(_last_reported(observed)).get("desiredReplicas")
    if (
        decision is not None
        and "autoscaling" in decision.fields
        and before not in (None, now)
        and now == decision.desired
    ):
        yield EmitEvent("Normal", decision.reason, decision.message)


def _is_new(observed: Observed, condition: Condition) -> bool:
    before = last_condition(_last_reported(observed), condition.type)
    first = before == ("", "")
    quiet = (condition.type, condition.status) in ((Type.PAUSED, "False"), (Type.ADAPTERS_READY, "Unknown"))
    return before != (condition.status, str(condition.reason)) and not (first and quiet)


def _kind(condition: Condition) -> Any:
    normal = dict.fromkeys((Type.READY, Type.PROGRESSING, Type.ADAPTERS_READY), "True").get(
        condition.type, condition.status
    )
    harmless = (
        Reason.SETTLED,
        Reason.STARTING,
        Reason.WARMING,
        Reason.RESIZING,
        Reason.ADAPTER_LOADING,
        Reason.ADAPTERS_UNKNOWN,
    )
    good = condition.status == normal and condition.reason != Reason.DEGRADED
    return "Normal" if good or condition.reason in harmless else "Warning"
