"""`InferenceGateway`: what is said of one. Pure.

No router serves several pools yet, so a gateway is checked and told to be unserved: an address that answers nothing
would be worse.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from plumage.api.v1alpha1 import InferenceGateway, parse_kept
from plumage.errors import ManifestError
from plumage_operator.conditions import Fact, Reason, Type, set_condition
from plumage_operator.observed import Object, meta
from plumage_operator.status import changed_materially, status_of

__all__ = ["gateway_status"]


def gateway_status(gateway: Object, pools: Collection[str], now: float) -> dict[str, Any] | None:
    """The status to write, or None where it stands already. pools: names of those in its namespace."""
    before, generation = status_of(gateway), int(meta(gateway).get("generation", 0))
    conditions = tuple(before.get("conditions") or ())
    for fact in _facts(gateway, pools):
        conditions = set_condition(conditions, fact, generation, now)
    status = {**before, "observedGeneration": generation, "conditions": [dict(one) for one in conditions]}
    return status if changed_materially(before, status) else None


def _facts(gateway: Object, pools: Collection[str]) -> tuple[Fact, ...]:
    try:
        read = parse_kept({key: value for key, value in gateway.items() if key != "status"}, "the gateway")
    except ManifestError as error:
        told = "; ".join(error.mistakes)
        return tuple(Fact(type_, "False", Reason.INVALID_SPEC, told) for type_ in (Type.READY, Type.ACCEPTED))
    assert isinstance(read, InferenceGateway), "the watch is for gateways"
    named = sorted({pool.pool_ref.name for model in read.spec.models for pool in model.pools})
    missing = [name for name in named if name not in pools]
    if missing:
        told = f"there is no InferencePool {', '.join(missing)} in this namespace: create it, or remove it here"
        accepted = Fact(Type.ACCEPTED, "False", Reason.POOL_MISSING, told)
    else:
        accepted = Fact(Type.ACCEPTED, "True", Reason.VALID, "")
    told = "no router of this version serves several pools: remove spec.router.gatewayRef of the pools, for own routers"
    return (Fact(Type.READY, "False", Reason.NOT_SERVED, told), accepted)
