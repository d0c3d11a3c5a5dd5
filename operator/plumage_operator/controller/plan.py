"""`plan(observed, site, now) → actions`: all that the operator decides about a pool. Pure.

Level-based: it looks at what is, never at what happened, so a plan that was cut short anywhere is simply made again.
An object that is as it should be gets no action; where all are, there is none.
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
from plumage_operator.observed import ChildKey, Object, Observed, key_of, meta, own_child, owner_uid, status_of
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

_EVENT_CONDITIONS: Final = (Type.READY, Type.PROGRESSING, Type.PAUSED)
"""Conditions whose changes are events. The others say the same, or say it to programs."""


def plan(observed: Observed, config: OperatorConfig, now: float) -> tuple[Action, ...]:
    """All that is to be done, in this order. now: seconds since 1970."""
    return (*plan_changes(observed, config), *plan_status(observed, config, now))


def plan_changes(observed: Observed, config: OperatorConfig) -> tuple[Action, ...]:
    """What makes the cluster as the spec says; of a paused pool, as its pods' cordons say. Nothing for a pool that
    goes: the garbage collector takes its children, and their pods drain."""
    if is_deleting(observed.pool):
        return ()
    context, mistakes = read_pool_context(observed, config)
    if context is None or mistakes:
        return ()
    return tuple(_cordons(observed, context) if is_paused(observed.pool) else _changes(observed, context))


def plan_key_secret(observed: Observed, config: OperatorConfig, *, recently: bool = False) -> tuple[Action, ...]:
    """The Secret with the pool's own keys, where it may be missing: before the first engines are made, and while pods
    wait for their volumes. The operator can't read Secrets, so nothing tells whether it is there. recently: it was made
    or found a moment ago, so pods wait for something else."""
    if is_deleting(observed.pool) or is_paused(observed.pool):
        return ()
    engines = own_child(observed, ("Deployment", child_name(str(meta(observed.pool).get("name")), "engine")))
    if engines is not None and (recently or not stuck_pods((*observed.pods, *observed.gateway_pods))):
        return ()
    context, mistakes = read_pool_context(observed, config)
    if context is None or mistakes or context.pool.spec.keys_ref is not None:
        return ()
    return (CreateSecret(build_key_secret(context), KEY_ENTRIES),)


def plan_status(observed: Observed, config: OperatorConfig, now: float) -> tuple[Action, ...]:
    """What is said of the pool: events, then its status."""
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
    """Whoever cordons a replica means now, and says so of a pod. A gateway has the cordons of its pools by its own
    look."""
    live = observed.children.get(("ConfigMap", context.name("router")))
    if live is None or owner_uid(live) != meta(observed.pool).get("uid"):
        return
    child = config_with_cordons(context, live, cordoned_replicas(observed.pods))
    if context.pool.spec.router.gateway_ref is None and child["data"] != live.get("data"):
        yield Apply(child, known=True)


def _deletion_costs(observed: Observed) -> Iterator[Action]:
    """Before the Deployment shrinks: a ReplicaSet looks at them when it chooses who goes."""
    costs: Mapping[str, int] = {} if observed.scaling is None else observed.scaling.deletion_costs
    for pod in observed.pods:
        name, annotations = str(meta(pod).get("name")), meta(pod).get("annotations") or {}
        if name in costs and annotations.get(DELETION_COST) != str(costs[name]):
            yield Annotate(name, {DELETION_COST: str(costs[name])})


def ensure_child(observed: Observed, child: Child) -> Iterator[Action]:
    """What makes the child as it should be: nothing where it is so."""
    key = key_of(child)
    live = observed.children.get(key)
    if live is None:
        yield Apply(child, known=False)
        if _existed(observed, key):
            yield EmitEvent("Normal", "ChildRecreated", f"{key[0]} {key[1]} was deleted and is created again", key)
        return
    if (owner := owner_uid(live)) not in ("", meta(observed.pool).get("uid")):
        yield Apply(child, known=False)  # another pool of that name had it: the performer looks, and refuses
        return
    applied = (meta(live).get("annotations") or {}).get(APPLIED)
    paths = drift(child, live)
    unchanged = applied == child["metadata"]["annotations"][APPLIED] and owner
    if unchanged and not paths:
        return
    yield Apply(child, known=bool(owner))
    if unchanged:
        said = f"{key[0]} {key[1]} was changed by somebody ({', '.join(paths)}) and is put back"
        yield EmitEvent("Warning", "ChildRepaired", said, key)


def delete_unwanted(observed: Observed, wanted: set[ChildKey]) -> Iterator[Action]:
    """Children that the spec no longer asks for; of others' objects only the owner may dispose."""
    for key, live in sorted(observed.children.items()):
        ours = owner_uid(live) == meta(observed.pool).get("uid")
        if key not in wanted and key[0] in KINDS and ours and "deletionTimestamp" not in meta(live):
            yield Delete(key[0], key[1], str(meta(live).get("uid", "")))


def _existed(observed: Observed, key: ChildKey) -> bool:
    """Whether a child that is missing was removed by somebody: it was there, and the present spec was once fully
    applied. One that was never there is new to this operator, or went while none ran."""
    status = status_of(observed.pool)
    applied = status.get("observedGeneration") == meta(observed.pool).get("generation")
    return key in observed.lost_children and applied and last_condition(observed.pool, Type.ROUTER_READY)[1] != ""


def _status_actions(
    observed: Observed, conditions: Sequence[Condition], context: PoolContext | None, now: float
) -> Iterator[Action]:
    """Events of what changed, then the status: an event that is lost with a crash would never be told, one that is told
    twice is counted."""
    status: dict[str, Any] = make_status(observed, conditions, context, now)
    if is_worth_writing(status_of(observed.pool), status):
        yield from condition_events(observed, conditions)
        yield from _resized(observed, status)
        yield WriteStatus(status)


def condition_events(observed: Observed, conditions: Sequence[Condition]) -> Iterator[Action]:
    """Events of those that are news to what was told before."""
    for condition in conditions:
        if condition.type in _EVENT_CONDITIONS and _is_news(observed, condition):
            yield EmitEvent(_kind(condition), condition.reason, condition.message or str(condition.type))


def _told_before(observed: Observed) -> Object:
    """The pool as its events told it last: with its own status, or with the one that the API server refused."""
    return observed.pool if observed.refused_status is None else {**observed.pool, "status": observed.refused_status}


def _resized(observed: Observed, status: Mapping[str, Any]) -> Iterator[Action]:
    """The autoscaler's own words where the size that it chose is another than was told. People may give a paused pool
    one that it did not choose."""
    said, now = observed.scaling, status.get("desiredReplicas")
    before = status_of(_told_before(observed)).get("desiredReplicas")
    if said is not None and "autoscaling" in said.fields and before not in (None, now) and now == said.desired:
        yield EmitEvent("Normal", said.reason, said.message)


def _is_news(observed: Observed, condition: Condition) -> bool:
    before = last_condition(_told_before(observed), condition.type)
    first = before == ("", "")
    quiet = condition.type is Type.PAUSED and condition.status == "False"
    return before != (condition.status, str(condition.reason)) and not (first and quiet)


def _kind(condition: Condition) -> Any:
    well = {Type.READY: "True", Type.PROGRESSING: "True"}.get(condition.type, condition.status)
    harmless = (Reason.SETTLED, Reason.STARTING, Reason.WARMING, Reason.RESIZING)
    good = condition.status == well and condition.reason != Reason.DEGRADED
    return "Normal" if good or condition.reason in harmless else "Warning"
