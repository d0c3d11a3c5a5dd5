"""The status of a pool. Pure.

It is written only when something changed that a person or a program would act on. A hit ratio that moves by a point is
not worth a write, which would wake every watcher of every pool all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from plumage.cluster import selector_of
from plumage.plural import counted
from plumage.settings.effect import without_effect
from plumage_operator.observed import Object, Observed, Refusal, condition_of, meta, status_of
from plumage_operator.resources import PoolContext
from plumage_operator.resources.context import scaled_by_hand
from plumage_operator.resources.router import port_name
from plumage_operator.status.component_status import (
    count_replicas,
    directory_condition,
    engine_condition,
    is_served,
    progress_condition,
    proven_replicas,
    router_condition,
)
from plumage_operator.status.conditions import Condition, Reason, Type, set_condition
from plumage_operator.status.external_engines import COUNTS
from plumage_operator.status.published_condition import published_condition

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
        *_adapters_condition(observed, context),
        *published_condition(observed, context),
        _scaling(observed, context, paused=paused),
        _paused(paused),
    )


def invalid_conditions(mistakes: Sequence[str], *, paused: bool) -> tuple[Condition, ...]:
    """Conditions of a pool whose spec is wrong in a way that its schema does not check. The operator changes nothing
    for it.
    """
    message = "; ".join(mistakes)
    return (
        Condition(Type.READY, "False", Reason.INVALID_SPEC, message),
        Condition(Type.ACCEPTED, "False", Reason.INVALID_SPEC, message),
        _paused(paused),
    )


def _accepted(observed: Observed, context: PoolContext) -> Condition:
    """An accepted spec may still have fields without effect. The message names them."""
    if not observed.refusals:
        return Condition(Type.ACCEPTED, "True", Reason.VALID, "; ".join(without_effect(context.pool)))
    return refused_condition(observed.refusals)


def refused_condition(refusals: Sequence[Refusal]) -> Condition:
    """The most severe refusal of the API server."""
    worst = sorted(refusals, key=lambda one: (one.reason != Reason.NAME_TAKEN, one.kind, one.name))[0]
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return Condition(Type.ACCEPTED, "False", worst.reason, worst.message + more)


def _ready(accepted: Condition, parts: Sequence[Condition]) -> Condition:
    """The first component that is not ready, or that is ready but lacks a replica."""
    wrong = next((condition for condition in (accepted, *parts) if condition.status != "True"), None)
    if wrong is not None:
        return Condition(Type.READY, "False", wrong.reason, wrong.message)
    worst = next((condition for condition in parts if condition.reason == Reason.DEGRADED), parts[0])
    return Condition(Type.READY, "True", worst.reason, worst.message)


def _adapters_condition(observed: Observed, context: PoolContext) -> tuple[Condition, ...]:
    """Whether all ready replicas serve all adapters; none for a pool without adapters. The model is served meanwhile,
    so Ready does not depend on it."""
    wanted = [adapter.name for adapter in context.pool.spec.model.adapters]
    if not wanted:
        return ()
    known = _adapters(observed, context).get("adapters", ())
    counts = count_replicas(observed, context, "engine")
    if not counts.ready or len(known) < len(wanted) or _is_older(observed):
        message = "no agent has reported on these adapters yet" if counts.ready else "no replica is ready"
        return (Condition(Type.ADAPTERS_READY, "Unknown", Reason.ADAPTERS_UNKNOWN, message),)
    lacking = [one for one in known if one.get("message") or one.get("replicas", 0) < counts.ready]
    if not lacking:
        message = f"{counted(len(wanted), 'adapter')} on all ready replicas"
        return (Condition(Type.ADAPTERS_READY, "True", Reason.ADAPTERS_LOADED, message),)
    replaced = counts.settled and counts.updated == counts.total  # older pods have no new adapter's volume
    failed = replaced and any(one.get("failedReplicas") for one in lacking)
    reason = Reason.ADAPTER_FAILED if failed else Reason.ADAPTER_LOADING
    message = ". ".join(f"{one['name']}: {_why_lacking(one, counts.ready)}" for one in _failed_first(lacking))
    return (Condition(Type.ADAPTERS_READY, "False", reason, message),)


def _is_older(observed: Observed) -> bool:
    """Whether the reports in the status were about an earlier spec, and a new operator has no later ones."""
    generation = int(meta(observed.pool).get("generation", 0))
    return observed.scaling is None and status_of(observed.pool).get("observedGeneration") != generation


def _why_lacking(adapter: Mapping[str, Any], ready: int) -> str:
    return str(adapter.get("message") or f"on {adapter.get('replicas', 0)} of {counted(ready, 'ready replica')}")


def _failed_first(lacking: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(lacking, key=lambda one: not one.get("failedReplicas"))


def _scaling(observed: Observed, context: PoolContext, *, paused: bool) -> Condition:
    if paused and context.pool.spec.autoscaling is not None:
        would = "" if observed.scaling is None else f"; without the pause: {observed.scaling.message}"
        return Condition(Type.SCALING, "False", Reason.PAUSED, f"the pool is paused: it keeps its size{would}")
    if observed.scaling is not None:
        decision = observed.scaling
        status = {"True": "True", "False": "False"}.get(decision.status, "Unknown")
        return Condition(Type.SCALING, status, decision.reason, decision.message)  # type: ignore[arg-type]
    if context.pool.spec.autoscaling is not None:
        return _undecided(observed.pool)
    return Condition(Type.SCALING, "False", Reason.MANUAL, scaled_by_hand(context.pool))


def _undecided(pool: Object) -> Condition:
    """The autoscaler's last decision holds until the next: a new operator gathers reports first."""
    last = condition_of(pool, Type.SCALING)
    if not last or last.get("reason") in (Reason.MANUAL, Reason.PAUSED):
        return Condition(Type.SCALING, "Unknown", Reason.AUTOSCALER_UNKNOWN, "the autoscaler has not decided yet")
    return Condition(Type.SCALING, last["status"], str(last["reason"]), str(last.get("message", "")))


def _paused(paused: bool) -> Condition:
    if paused:
        message = "an annotation pauses the pool: the operator changes only its cordons"
        return Condition(Type.PAUSED, "True", Reason.PAUSED, message)
    return Condition(Type.PAUSED, "False", Reason.NOT_PAUSED, "")


def make_status(
    observed: Observed, conditions: Sequence[Condition], context: PoolContext | None, now: float
) -> dict[str, Any]:
    """The whole status.

    Without a context (the spec can't be parsed) the previous fields stay. now: seconds since 1970.
    """
    before, generation = status_of(observed.pool), int(meta(observed.pool).get("generation", 0))
    kept: Sequence[Mapping[str, Any]] = before.get("conditions") or ()
    present = {str(condition.type) for condition in conditions}
    written = tuple(dict(one) for one in kept if context is None or one.get("type") in present)
    for condition in conditions:
        written = set_condition(written, condition, generation, now)
    if context is None:
        fields = dict(before)
    else:
        fields = {**_replica_fields(observed, context), **_proven(observed, conditions, context)}
    return {**fields, "observedGeneration": generation, "conditions": list(written)}


def _replica_fields(observed: Observed, context: PoolContext) -> dict[str, Any]:
    found, pool = count_replicas(observed, context, "engine"), context.pool
    chosen = selector_of(pool.metadata.name, "engine")
    return {
        "replicas": found.total,
        "readyReplicas": found.ready,
        "updatedReplicas": found.updated,
        "desiredReplicas": context.replicas,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(chosen.items())),
        "model": pool.spec.model.served_name,
        **_address(observed, context),
        **_autoscaler_fields(observed, context),
        **_adapters(observed, context),
    }


def _autoscaler_fields(observed: Observed, context: PoolContext) -> dict[str, Any]:
    """The autoscaler's fields; the previous ones while it has no decision."""
    if observed.scaling is not None:
        return {name: value for name, value in observed.scaling.fields.items() if name != "adapters"}
    names = ["hitRatioPercent"]
    names += ["autoscaling"] if context.pool.spec.autoscaling else []
    names += COUNTS if context.pool.spec.engine.external else []
    return {name: value for name, value in status_of(observed.pool).items() if name in names}


def _adapters(observed: Observed, context: PoolContext) -> dict[str, Any]:
    """The adapters of the spec, by the last reports. The previous ones hold while a new operator gathers reports."""
    last = status_of(observed.pool) if observed.scaling is None else observed.scaling.fields
    found = last.get("adapters") or ()
    names = {adapter.name for adapter in context.pool.spec.model.adapters}
    known = [dict(one) for one in found if one.get("name") in names]
    return {"adapters": known} if known else {}


def _proven(observed: Observed, conditions: Sequence[Condition], context: PoolContext) -> dict[str, int]:
    """The most replicas that were ready at once, of those that are wanted: the next state is compared with it.

    It is written only while the pool grows or is broken. Otherwise the size says the same, and a quiet pool's status
    stays as it is.
    """
    ready = any(condition.type is Type.ENGINE_READY and condition.status == "True" for condition in conditions)
    reached = count_replicas(observed, context, "engine").ready if ready else 0
    proven = min(context.replicas, max(proven_replicas(observed), reached))
    return {} if proven == (context.replicas if ready else 0) else {"provenReplicas": proven}


def _address(observed: Observed, context: PoolContext) -> dict[str, str]:
    """Returns the address of the pool's own router, or of the gateway that serves it."""
    router = context.pool.spec.router
    if router.gateway_ref is None:
        scheme = port_name(router.tls)
        return {"address": f"{scheme}://{context.name('router')}.{context.namespace}.svc:{router.service.port}"}
    addresses = status_of(observed.gateway or {}).get("addresses") or ()
    return {"address": str(addresses[0])} if addresses and is_served(observed) else {}


def is_worth_writing(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the new status is worth a write."""
    if _steady_fields(before) != _steady_fields(after):
        return True
    old, new = before.get("hitRatioPercent"), after.get("hitRatioPercent")
    if old is None or new is None:
        return old is not new
    return abs(int(old) - int(new)) >= _RATIO_POINTS


def _steady_fields(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that change all the time, or that other changes imply."""
    moving = ("conditions", "hitRatioPercent", "autoscaling")
    steady = {name: value for name, value in status.items() if name not in moving}
    conditions = [
        {name: value for name, value in one.items() if name != "lastTransitionTime" and not _changes_often(one, name)}
        for one in status.get("conditions") or ()
    ]
    scaling = status.get("autoscaling") or {}
    return {
        **steady,
        "conditions": sorted(conditions, key=lambda one: str(one.get("type"))),
        "autoscaling": (scaling.get("wantedReplicas"), scaling.get("lastScaleTime")),
    }


def _changes_often(condition: Mapping[str, Any], name: str) -> bool:
    """The autoscaler's message contains changing numbers. Its reason says whether they matter."""
    return name == "message" and condition.get("type") == Type.SCALING


def last_condition(pool: Object, type_: Type) -> tuple[str, str]:
    """Status and reason that a condition has in the pool's status."""
    found = condition_of(pool, type_)
    return str(found.get("status", "")), str(found.get("reason", ""))
