"""Conditions of a pool whose engines somebody else deploys. Pure.

The operator does not read the engines' pods. How many there are, it learns from the routers.
"""

from __future__ import annotations

from plumage.plural import counted
from plumage_operator.kinds import INTEGRATIONS, PUBLISHED_POOL
from plumage_operator.observed import Observed, condition_of, external_of, status_of
from plumage_operator.resources import PoolContext
from plumage_operator.resources.context import external_mistake
from plumage_operator.status.conditions import Condition, Reason, Type

__all__ = ["COUNTS", "external_engine_condition", "external_progress_condition"]

COUNTS = ("replicas", "readyReplicas")
"""The fields of the status that the routers' reports fill."""

_SWITCH = next(one.switch for one in INTEGRATIONS if one.kind == PUBLISHED_POOL)


def external_engine_condition(observed: Observed, context: PoolContext) -> Condition:
    """At least one engine is ready, as a router sees it.

    An InferencePool that is missing or can't be used is reported although the engines of before may serve.
    """
    if (why := _reference_mistake(observed)) is not None:
        stale = "" if context.external is None else ". The routers keep the pods of before"
        return Condition(Type.ENGINE_READY, "False", Reason.ENGINES_UNKNOWN, why + stale)
    last = _last_counts(observed)
    if last is None:
        return Condition(Type.ENGINE_READY, "False", Reason.STARTING, "no router has reported on the engines yet")
    total, ready = last
    message = f"{ready} of {counted(total, 'engine')} can get requests, as the routers report"
    if ready:
        return Condition(Type.ENGINE_READY, "True", Reason.SERVING, message)
    return Condition(Type.ENGINE_READY, "False", Reason.NO_ENGINE, message)


def _last_counts(observed: Observed) -> tuple[int, int] | None:
    """Engines, and those that can get requests; None before a router has reported. A new operator has the counts of the
    status until its first reports.
    """
    if observed.scaling is not None:
        found = observed.scaling.fields
        return (int(found["replicas"]), int(found["readyReplicas"])) if "replicas" in found else None
    if condition_of(observed.pool, Type.ENGINE_READY).get("reason") not in (Reason.SERVING, Reason.NO_ENGINE):
        return None
    status = status_of(observed.pool)
    return int(status.get("replicas", 0)), int(status.get("readyReplicas", 0))


def external_progress_condition() -> Condition:
    message = "the engines are external: their owner replaces them"
    return Condition(Type.PROGRESSING, "False", Reason.SETTLED, message)


def _reference_mistake(observed: Observed) -> str | None:
    name = f"{PUBLISHED_POOL} {external_of(observed.pool)}"
    if observed.external is None:
        return (
            f"there is no {name} in this namespace, or the operator does not watch that kind: create it, or helm "
            f"upgrade with integrations.{_SWITCH}=true"
        )
    mistake = external_mistake(observed.external)
    return None if mistake is None else f"{name} can't name engines: {mistake}"
