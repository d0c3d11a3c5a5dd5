"""The status of a pool: its conditions and figures. Pure.

It is written only when something changed that a person or a program would act on: a hit ratio that moves by a point is
no news, and a status that is written for it would wake every watcher of every pool all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from plumage.cluster import selector_of
from plumage.settings import without_effect
from plumage_operator.observed import Object, Observed, Refusal, meta, status_of
from plumage_operator.resources import PoolContext
from plumage_operator.status.component_status import (
    counts,
    directory_condition,
    engine_condition,
    is_served,
    progress_condition,
    proven_replicas,
    router_condition,
)
from plumage_operator.status.conditions import Condition, Reason, Type, find_condition, set_condition

__all__ = ["invalid_conditions", "is_worth_writing", "make_status", "pool_conditions", "refused_condition"]

_RATIO_POINTS: Final = 3

_HARMLESS: Final = frozenset({Reason.SERVING, Reason.SCALED_TO_ZERO, Reason.EXTERNAL})


def pool_conditions(observed: Observed, context: PoolContext, *, paused: bool) -> tuple[Condition, ...]:
    """All conditions of a pool whose spec can be read."""
    parts = (
        engine_condition(observed, context),
        router_condition(observed, context),
        directory_condition(observed, context),
    )
    accepted = _accepted(observed, context)
    return (
        _ready(accepted, parts),
        accepted,
        *parts,
        progress_condition(observed, context),
        _scaling(observed, context, paused=paused),
        _paused(paused),
    )


def invalid_conditions(mistakes: Sequence[str], *, paused: bool) -> tuple[Condition, ...]:
    """Of a pool whose spec is wrong in ways that its schema does not know: nothing is changed for it."""
    told = "; ".join(mistakes)
    return (
        Condition(Type.READY, "False", Reason.INVALID_SPEC, told),
        Condition(Type.ACCEPTED, "False", Reason.INVALID_SPEC, told),
        _paused(paused),
    )


def _accepted(observed: Observed, context: PoolContext) -> Condition:
    """A spec that is accepted may still ask for what it does not get, which is said here or nowhere."""
    if not observed.refusals:
        return Condition(Type.ACCEPTED, "True", Reason.VALID, "; ".join(without_effect(context.pool)))
    return refused_condition(observed.refusals)


def refused_condition(refusals: Sequence[Refusal]) -> Condition:
    """The gravest of what the API server would not do."""
    worst = sorted(refusals, key=lambda one: (one.reason != Reason.NAME_TAKEN, one.kind, one.name))[0]
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return Condition(Type.ACCEPTED, "False", worst.reason, worst.message + more)


def _ready(accepted: Condition, parts: Sequence[Condition]) -> Condition:
    """The first of its parts that is not ready, or is but lacks a replica."""
    wrong = next((condition for condition in (accepted, *parts) if condition.status != "True"), None)
    if wrong is not None:
        return Condition(Type.READY, "False", wrong.reason, wrong.message)
    worst = next((condition for condition in parts if condition.reason == Reason.DEGRADED), parts[0])
    return Condition(Type.READY, "True", worst.reason, worst.message)


def _scaling(observed: Observed, context: PoolContext, *, paused: bool) -> Condition:
    if paused and context.pool.spec.autoscaling is not None:
        would = "" if observed.scaling is None else f"; without the pause: {observed.scaling.message}"
        return Condition(Type.SCALING, "False", Reason.PAUSED, f"the pool is paused: it keeps its size{would}")
    if observed.scaling is not None:
        said = observed.scaling
        status = {"True": "True", "False": "False"}.get(said.status, "Unknown")
        return Condition(Type.SCALING, status, said.reason, said.message)  # type: ignore[arg-type]
    if context.pool.spec.autoscaling is not None:
        return _undecided(observed.pool)
    return Condition(Type.SCALING, "False", Reason.MANUAL, "spec.autoscaling is not set: spec.replicas counts")


def _undecided(pool: Object) -> Condition:
    """The autoscaler's last word holds until it has another: a new operator gathers figures first."""
    last = find_condition(status_of(pool).get("conditions") or (), Type.SCALING)
    if last is None or last.get("reason") in (Reason.MANUAL, Reason.PAUSED):
        return Condition(Type.SCALING, "Unknown", Reason.AUTOSCALER_UNKNOWN, "the autoscaler has not decided yet")
    return Condition(Type.SCALING, last["status"], str(last["reason"]), str(last.get("message", "")))


def _paused(paused: bool) -> Condition:
    if paused:
        told = "the pool's annotation says so: its children are left alone, but for cordons"
        return Condition(Type.PAUSED, "True", Reason.PAUSED, told)
    return Condition(Type.PAUSED, "False", Reason.NOT_PAUSED, "")


def make_status(
    observed: Observed, conditions: Sequence[Condition], context: PoolContext | None, now: float
) -> dict[str, Any]:
    """The whole status. Without a scene (a spec that can't be read) the figures of before stay."""
    before, generation = status_of(observed.pool), int(meta(observed.pool).get("generation", 0))
    kept: Sequence[Mapping[str, Any]] = before.get("conditions") or ()
    told = {str(condition.type) for condition in conditions}
    written = tuple(dict(one) for one in kept if context is None or one.get("type") in told)
    for condition in conditions:
        written = set_condition(written, condition, generation, now)
    figures = (
        dict(before) if context is None else {**_figures(observed, context), **_proven(observed, conditions, context)}
    )
    return {**figures, "observedGeneration": generation, "conditions": list(written)}


def _figures(observed: Observed, context: PoolContext) -> dict[str, Any]:
    found, pool = counts(observed, context, "engine"), context.pool
    chosen = selector_of(pool.metadata.name, "engine")
    return {
        "replicas": found.total,
        "readyReplicas": found.ready,
        "updatedReplicas": found.updated,
        "desiredReplicas": context.replicas,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(chosen.items())),
        "model": pool.spec.model.served_name,
        **_address(observed, context),
        **_by_the_autoscaler(observed, context),
    }


def _by_the_autoscaler(observed: Observed, context: PoolContext) -> dict[str, Any]:
    """Its own fields; while it has no word, those of before."""
    if observed.scaling is not None:
        return dict(observed.scaling.fields)
    names = ("hitRatioPercent", "autoscaling") if context.pool.spec.autoscaling else ("hitRatioPercent",)
    return {name: value for name, value in status_of(observed.pool).items() if name in names}


def _proven(observed: Observed, conditions: Sequence[Condition], context: PoolContext) -> dict[str, int]:
    """The most replicas that were ready while the pool was, of those that are wanted: what its next state is held
    against. Told while the pool grows or is broken; else its size says it, and a quiet pool's status stays as it is."""
    ready = any(condition.type is Type.ENGINE_READY and condition.status == "True" for condition in conditions)
    reached = counts(observed, context, "engine").ready if ready else 0
    proven = min(context.replicas, max(proven_replicas(observed), reached))
    return {} if proven == (context.replicas if ready else 0) else {"provenReplicas": proven}


def _address(observed: Observed, context: PoolContext) -> dict[str, str]:
    """Of the pool's own router, or of the gateway that serves it."""
    router = context.pool.spec.router
    if router.gateway_ref is None:
        return {"address": f"http://{context.name('router')}.{context.namespace}.svc:{router.service.port}"}
    addresses = status_of(observed.gateway or {}).get("addresses") or ()
    return {"address": str(addresses[0])} if addresses and is_served(observed) else {}


def is_worth_writing(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether it is worth a write."""
    if _plain(before) != _plain(after):
        return True
    old, new = before.get("hitRatioPercent"), after.get("hitRatioPercent")
    if old is None or new is None:
        return old is not new
    return abs(int(old) - int(new)) >= _RATIO_POINTS


def _plain(status: Mapping[str, Any]) -> dict[str, Any]:
    """Less what moves all the time, and what would be told by something else that changes."""
    moving = ("conditions", "hitRatioPercent", "autoscaling")
    told = {name: value for name, value in status.items() if name not in moving}
    conditions = [
        {name: value for name, value in one.items() if name != "lastTransitionTime" and not _moves(one, name)}
        for one in status.get("conditions") or ()
    ]
    scaling = status.get("autoscaling") or {}
    return {
        **told,
        "conditions": sorted(conditions, key=lambda one: str(one.get("type"))),
        "autoscaling": (scaling.get("wantedReplicas"), scaling.get("lastScaleTime")),
    }


def _moves(condition: Mapping[str, Any], name: str) -> bool:
    """The autoscaler's words carry figures; its reason says whether they matter."""
    return name == "message" and condition.get("type") == Type.SCALING


def last_condition(pool: Object, type_: Type) -> tuple[str, str]:
    """Status and reason that a condition had."""
    found = find_condition(status_of(pool).get("conditions") or (), type_) or {}
    return str(found.get("status", "")), str(found.get("reason", ""))
