"""The condition Published: what Gateways say of the InferencePool that a pool publishes for them. Pure.

A Gateway whose route leads to the InferencePool is one of its *parents*, and writes conditions into its status
(api/v1/inferencepool_types.go of kubernetes-sigs/gateway-api-inference-extension, v1.6.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from plumage_operator.kinds import PUBLISHED_POOL
from plumage_operator.observed import Object, Observed, meta, own_child, status_of
from plumage_operator.resources import PoolContext
from plumage_operator.status.conditions import Condition, Reason, Type

__all__ = ["published_condition"]

_ACCEPTED: Final = "Accepted"
_JUDGED: Final = (_ACCEPTED, "ResolvedRefs")


def published_condition(observed: Observed, context: PoolContext) -> tuple[Condition, ...]:
    """None for a pool that publishes nothing. Clients of the router need no Gateway, so Ready does not depend on it."""
    picker = context.pool.spec.router.endpoint_picker
    if picker is None or picker.inference_pool is None:
        return ()
    return (_judge(own_child(observed, (PUBLISHED_POOL, context.metadata.name)), context.metadata.name),)


def _judge(live: Object | None, name: str) -> Condition:
    if live is None:
        message = f"there is no {PUBLISHED_POOL} {name}: the condition Accepted has the cause"
        return Condition(Type.PUBLISHED, "False", Reason.NOT_PUBLISHED, message)
    parents = status_of(live).get("parents") or ()
    if refused := [why for parent in parents for why in _refusals(parent)]:
        return Condition(Type.PUBLISHED, "False", Reason.PARENT_REFUSED, "; ".join(refused))
    if accepting := [_name_of(parent) for parent in parents if _accepts(parent, live)]:
        return Condition(Type.PUBLISHED, "True", Reason.PARENTS_ACCEPTED, f"accepted by {', '.join(accepting)}")
    message = f"no Gateway has accepted {PUBLISHED_POOL} {name} yet: name it in backendRefs of an HTTPRoute"
    return Condition(Type.PUBLISHED, "Unknown", Reason.NO_PARENT, message)


def _refusals(parent: Mapping[str, Any]) -> Iterator[str]:
    for one in parent.get("conditions") or ():
        if one.get("type") in _JUDGED and one.get("status") == "False":
            yield f"{_name_of(parent)}: {one['type']} is False, {one.get('reason')}: {one.get('message')}"


def _accepts(parent: Mapping[str, Any], live: Object) -> bool:
    """An answer about an earlier spec does not count."""
    generation = meta(live).get("generation", 0)
    return any(
        (one.get("type"), one.get("status")) == (_ACCEPTED, "True")
        and one.get("observedGeneration", generation) == generation
        for one in parent.get("conditions") or ()
    )


def _name_of(parent: Mapping[str, Any]) -> str:
    reference = parent.get("parentRef") or {}
    names = [reference.get("namespace"), reference.get("name")]
    return f"{reference.get('kind', 'Gateway')} {'/'.join(str(name) for name in names if name)}"
